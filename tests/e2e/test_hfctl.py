"""hfctl against a real cluster: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from example_jobs import training_job
from local_cluster import LocalCluster, binary

Run = Callable[..., subprocess.CompletedProcess[str]]


def hfctl(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary("client/cli:hfctl")), "--coordinator", address, *arguments],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


@pytest.fixture
def run(shared_cluster: LocalCluster) -> Run:
    return lambda *arguments: hfctl(shared_cluster.address, *arguments)


def submitted(run: Run, *command: str) -> str:
    done = run("submit", "--name", "from-hfctl", "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def test_nodes_and_gpus_are_listed(run: Run) -> None:
    nodes, gpus = run("nodes"), run("gpus", "b")
    assert (nodes.returncode, gpus.returncode) == (0, 0)
    assert nodes.stdout.count("ALIVE") == 2
    assert "SIM-b-0" in gpus.stdout and "SIM-b-1" in gpus.stdout
    assert "SIM-a-0" not in gpus.stdout
    assert {node["node"] for node in json.loads(run("nodes", "-o", "json").stdout)["nodes"]} == {
        "a", "b",
    }  # fmt: skip


def test_submit_follow_wait_and_describe(run: Run) -> None:
    job_id = submitted(run, "/bin/sh", "-c", "echo first; sleep 0.5; echo last")
    logs = run("job", "logs", job_id, "-f")
    assert (logs.returncode, logs.stdout) == (0, "first\nlast\n")
    assert run("job", "wait", job_id).returncode == 0
    described = run("job", "describe", job_id)
    assert "SUCCEEDED" in described.stdout and "from-hfctl" in described.stdout
    assert job_id in run("jobs").stdout


def test_waiting_for_a_job_that_fails_ends_with_1(run: Run) -> None:
    job_id = submitted(run, "/bin/sh", "-c", "exit 3")
    done = run("job", "wait", job_id)
    assert done.returncode == 1
    assert "FAILED" in done.stdout and "3" in done.stdout


def test_a_wait_that_times_out_ends_with_124_and_cancel_ends_the_job(run: Run) -> None:
    job_id = submitted(run, "/bin/sleep", "100")
    assert run("job", "wait", job_id, "--timeout", "300ms").returncode == 124
    assert run("job", "cancel", job_id).returncode == 0
    done = run("job", "wait", job_id, "--timeout", "20s")
    assert done.returncode == 1 and "CANCELLED" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nods"], 2, "nodes"),
        (["jobs", "--limt", "3"], 2, "limit"),
        (["submit"], 2, "--"),
        (["submit", "--ranks", "many", "--", "true"], 2, "ranks"),
        (["job", "describe", "no-such-job"], 4, "no-such-job"),
        (["plan", "no-such-job"], 4, "no-such-job"),
        (["submit", "/no/such/job.json"], 4, "/no/such/job.json"),
    ],
)
def test_bad_usage_has_a_sentence_and_a_code(
    run: Run, arguments: list[str], code: int, words: str
) -> None:
    done = run(*arguments)
    assert done.returncode == code, done
    assert words in done.stderr and done.stderr.startswith("hfctl: ")


def test_a_job_file_with_an_unknown_field_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"name": "x", "command": ["true"], "ranks": 1, "prioritty": 3}))
    done = run("submit", str(path))
    assert done.returncode == 2
    assert "prioritty" in done.stderr


def test_an_absent_coordinator_ends_with_3_and_names_its_address() -> None:
    done = hfctl("127.0.0.1:1", "jobs", "--timeout", "1s")
    assert done.returncode == 3
    assert "127.0.0.1:1" in done.stderr


def test_plan_and_explain_show_a_training_job(
    shared_cluster: LocalCluster, run: Run, tmp_path: Path
) -> None:
    job_id = shared_cluster.submit(
        training_job("hyperframes", tmp_path / "r-{rank}.json", "--activation-budget", "8MiB")
    )
    job = shared_cluster.wait_job(job_id, 120)
    assert job["state"] == "JOB_STATE_SUCCEEDED", shared_cluster.whole_log(job_id, 0)[-2000:]
    plan, explained = run("plan", job_id), run("explain", job_id)
    assert (plan.returncode, explained.returncode) == (0, 0), plan.stderr + explained.stderr
    assert "blocks.0" in explained.stdout
    assert run("top", "--once").returncode == 0
