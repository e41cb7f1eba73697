"""Programs that torchrun has started become jobs by themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local_cluster import ROOT, LocalCluster, binary, wait_until
from summary import RunSummary, load_run

PATHS = os.pathsep.join(str(ROOT / part) for part in ("client/python", "deploy", "examples"))
SMALL = ("--batch", "2", "--length", "128", "--layers", "3", "--hidden", "64", "--heads", "4")


def torchrun(
    mode: str, report: Path, *extra: str, coordinator: str = "", steps: int = 4, ranks: int = 2
) -> subprocess.Popen[str]:
    """The example under torch's own launcher; it knows the cluster by one variable alone."""
    environment = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    environment = {k: v for k, v in environment.items() if not k.startswith("HYPERFRAMES_")}
    if coordinator:
        environment |= {"HYPERFRAMES_COORDINATOR": coordinator, "HYPERFRAMES_NODE": "a"}
    return subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(ranks), str(ROOT / "examples" / "train_gpt.py"),
            "--mode", mode, "--steps", str(steps), "--report", str(report), *SMALL, *extra,
        ],
        env=environment, stdout=output_of(report).open("w"), stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def output_of(report: Path) -> Path:
    return report.with_suffix(".log")


def finish(program: subprocess.Popen[str], report: Path, timeout_s: float = 240) -> int:
    """Its exit status. AssertionError with what it printed when it does not end."""
    try:
        return program.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(output_of(report).read_text()[-4000:]) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # torchrun's ranks do not end with it.
        program.wait()


def attached_jobs(cluster: LocalCluster) -> list[dict[str, Any]]:
    return [job for job in cluster.client.jobs() if job.get("attached")]


def newest(cluster: LocalCluster) -> dict[str, Any]:
    return cluster.job(attached_jobs(cluster)[0]["id"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The same program without HyperFrames."""
    report = tmp_path_factory.mktemp("plain") / "nothing-{rank}.json"
    assert finish(torchrun("nothing", report), report) == 0, output_of(report).read_text()
    return load_run(report, 2)


def budget_below(plain: RunSummary) -> str:
    return str(int(0.5 * min(plain.activation_peaks)))


def test_a_program_of_torchruns_is_a_job_and_bit_equal(
    shared_cluster: LocalCluster, plain: RunSummary, tmp_path: Path
) -> None:
    budget = budget_below(plain)
    for run in range(2):  # The second finds everything as the first found it.
        report = tmp_path / f"attached-{run}-{{rank}}.json"
        program = torchrun(
            "hyperframes", report, "--activation-budget", budget,
            coordinator=shared_cluster.address,
        )  # fmt: skip
        assert finish(program, report) == 0, output_of(report).read_text()
        framed = load_run(report, 2)
        assert framed.fingerprint == plain.fingerprint
        assert framed.peer_bytes + framed.host_bytes + framed.recomputed_bytes > 0
        job = shared_cluster.wait_job(newest(shared_cluster)["id"], 5)
        assert job["state"] == "JOB_STATE_SUCCEEDED", job
        assert [worker["node"] for worker in job["workers"]] == ["a", "a"]
        assert len({worker["gpu"] for worker in job["workers"]}) == 2
        assert shared_cluster.leases() == []
    assert len(attached_jobs(shared_cluster)) == 2
    listed = subprocess.run(
        [str(binary("client/cli:hfctl")), "--coordinator", shared_cluster.address, "jobs"],
        capture_output=True, text=True, timeout=10, check=True,
    ).stdout  # fmt: skip
    assert "train_gpt" in listed and "SUCCEEDED" in listed, listed


def test_a_killed_rank_returns_every_byte_and_the_next_run_works(
    shared_cluster: LocalCluster, plain: RunSummary, tmp_path: Path
) -> None:
    budget = budget_below(plain)
    report = tmp_path / "killed-{rank}.json"
    program = torchrun(
        "hyperframes", report, "--activation-budget", budget,
        coordinator=shared_cluster.address, steps=100000,
    )  # fmt: skip
    wait_until(lambda: bool(shared_cluster.leases()), 60, "the program to hold leases", 0.05)
    job = newest(shared_cluster)
    assert job["state"] == "JOB_STATE_RUNNING", job
    refused = subprocess.run(
        [str(binary("client/cli:hfctl")), "--coordinator", shared_cluster.address, "job", "cancel",
         job["id"]],
        capture_output=True, text=True, timeout=10, check=False,
    )  # fmt: skip
    assert refused.returncode == 5, refused
    assert "torchrun" in refused.stderr and "--signal" in refused.stderr
    os.kill(job["workers"][1]["report"]["pid"], signal.SIGKILL)
    wait_until(lambda: not shared_cluster.leases(), 10, "every lease to be back", 0.05)
    assert finish(program, report) != 0
    ended = shared_cluster.wait_job(job["id"], 10)
    assert ended["state"] == "JOB_STATE_FAILED", ended
    assert "rank 1 on node a disappeared" in ended["message"], ended
    again = torchrun(
        "hyperframes", report, "--activation-budget", budget, coordinator=shared_cluster.address
    )
    assert finish(again, report) == 0, output_of(report).read_text()
    assert newest(shared_cluster)["state"] == "JOB_STATE_SUCCEEDED"
    assert shared_cluster.leases() == []


def test_an_attached_job_is_cancelled_by_signal(
    shared_cluster: LocalCluster, plain: RunSummary, tmp_path: Path
) -> None:
    budget = budget_below(plain)
    report = tmp_path / "r.json"
    program = torchrun(
        "hyperframes", report, "--activation-budget", budget,
        coordinator=shared_cluster.address, steps=100000, ranks=1,
    )  # fmt: skip

    def runs() -> bool:
        jobs = attached_jobs(shared_cluster)
        return bool(jobs) and jobs[0]["state"] == "JOB_STATE_RUNNING"

    wait_until(runs, 60, "the program to attach", 0.05)
    job_id = newest(shared_cluster)["id"]
    shared_cluster.call("CancelJob", {"id": job_id, "signal": True})
    assert shared_cluster.wait_job(job_id, 20)["state"] == "JOB_STATE_CANCELLED"
    assert finish(program, report) != 0
    assert shared_cluster.leases() == []
