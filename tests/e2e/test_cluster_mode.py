"""The Python front as a worker of a cluster's jobs: plans, new shapes, several ranks, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_cluster import ROOT, LocalCluster, Node, binary, wait_until

SHORT, LONG = 48, 160  # All of a step's activations: 3.5 and 15.3 MiB.
DO_NOT_RESTART, UNREACHABLE = 93, 3
WORKER = str(ROOT / "tests" / "cluster_worker.py")
PATHS = os.pathsep.join(str(ROOT / part) for part in ("client/python", "tests"))


def worker_job(report: Path, *arguments: str, ranks: int = 1, mode: str = "on") -> dict[str, Any]:
    command = ["/usr/bin/env", f"HYPERFRAMES_MODE={mode}", sys.executable, WORKER]
    return {
        "name": "worker",
        "command": [*command, "--report", str(report), *arguments],
        "env": {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        "working_directory": str(ROOT),
        "ranks": ranks,
    }


def finish(cluster: LocalCluster, spec: dict[str, Any]) -> str:
    """Runs a job that has to succeed."""
    job_id = cluster.submit(spec)
    job = cluster.wait_job(job_id, 60)
    logs = [cluster.whole_log(job_id, rank)[-3000:] for rank in range(spec["ranks"])]
    assert job["state"] == "JOB_STATE_SUCCEEDED", (job["message"], logs)
    return job_id


def load(report: Path, rank: int) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(str(report).replace("{rank}", str(rank))).read_text())
    return values


def workers_of(cluster: LocalCluster, job_id: str) -> list[dict[str, Any]]:
    return [
        worker
        for node in cluster.client.nodes()
        for worker in node.get("workers", [])
        if worker["job_id"] == job_id
    ]


@pytest.fixture(scope="module")
def narrow_cluster() -> Iterator[LocalCluster]:
    """Nothing to lend: one GPU, no host memory."""
    with tempfile.TemporaryDirectory(prefix="hf-") as path:
        node = Node("n", "1 x 64MiB", {"host-bytes": "0B"})
        with LocalCluster(Path(path), [node]) as started:
            yield started


def test_new_shapes_are_planned_within_the_leases_and_bit_equal(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    on, off = tmp_path / "on-{rank}.json", tmp_path / "off-{rank}.json"
    lengths = ("--lengths", ",".join(map(str, [SHORT, SHORT, LONG, LONG, SHORT, LONG])))
    limits = ("--activation-budget", "5MiB")
    job_id = finish(shared_cluster, worker_job(on, *lengths, *limits))
    finish(shared_cluster, worker_job(off, *lengths, *limits, mode="off"))
    seen = load(on, 0)
    assert seen["digests"] == load(off, 0)["digests"]
    assert seen["policies"][2] != seen["policies"][1], "the longer shape has a plan of its own"
    # One plan of the coordinator's; the others were made here, with what it had granted.
    assert int(shared_cluster.job(job_id)["plan_epoch"]) == 1
    assert shared_cluster.leases() == []


def test_a_later_plan_prices_links_as_they_were_measured(
    run_directory: Path, tmp_path: Path
) -> None:
    link = {"peer-bandwidth": "5MB", "host-bandwidth": "5MB"}
    with LocalCluster(run_directory, [Node("s", "2 x 64MiB", link)]) as cluster:
        report = tmp_path / "slow-{rank}.json"
        limits = ("--activation-budget", "12MiB", "--forbid", "recompute", "--forbid", "host")
        finish(cluster, worker_job(report, "--lengths", f"{LONG},{LONG - 1}", *limits))
    seen = load(report, 0)
    assert seen["peer_bytes"][1] > 1 << 20
    # What does not hide behind a few milliseconds of compute is waited for, at 5 MB/s.
    assert seen["exposed_s"][1] > 0.5 * seen["peer_bytes"][1] / 5e6


def test_ranks_with_different_shapes_agree_on_the_blocks_that_communicate(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Rank 1 alone meets longer inputs and plans them alone. The group must not hang for it."""
    on, off = tmp_path / "on-{rank}.json", tmp_path / "off-{rank}.json"
    arguments = (
        "--talks",
        *("--lengths", f"{SHORT},{SHORT},{SHORT},{SHORT}"),
        *("--rank1-lengths", f"{SHORT},{LONG},{LONG},{SHORT}"),
        *("--activation-budget", "9MiB", "--forbid", "peer", "--forbid", "host"),
    )
    finish(shared_cluster, worker_job(on, *arguments, ranks=2))
    finish(shared_cluster, worker_job(off, *arguments, ranks=2, mode="off"))
    seen = [load(on, rank) for rank in range(2)]
    for rank in range(2):
        assert seen[rank]["digests"] == load(off, rank)["digests"]
    talking = [step["blocks.1"] for rank in seen for step in rank["policies"]]
    assert len(set(talking)) == 1, talking
    assert seen[1]["policies"][1] != seen[0]["policies"][1], "the other blocks are each rank's own"


def test_ranks_whose_first_plans_differ_agree_too(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    report = tmp_path / "r-{rank}.json"
    arguments = (
        "--talks",
        *("--lengths", f"{SHORT},{SHORT}", "--rank1-lengths", f"{LONG},{LONG}"),
        *("--activation-budget", "5MiB", "--forbid", "peer", "--forbid", "host"),
    )
    finish(shared_cluster, worker_job(report, *arguments, ranks=2))
    first, second = load(report, 0)["policies"], load(report, 1)["policies"]
    assert [step["blocks.1"] for step in first] == [step["blocks.1"] for step in second]
    assert first != second


def test_without_anything_to_lend_blocks_are_recomputed(
    narrow_cluster: LocalCluster, tmp_path: Path
) -> None:
    on, off = tmp_path / "on-{rank}.json", tmp_path / "off-{rank}.json"
    arguments = ("--lengths", f"{SHORT},{SHORT},{LONG}", "--activation-budget", "5MiB")
    finish(narrow_cluster, worker_job(on, *arguments))
    finish(narrow_cluster, worker_job(off, *arguments, mode="off"))
    seen = load(on, 0)
    assert seen["digests"] == load(off, 0)["digests"]
    assert seen["stats"]["peer_bytes"] == seen["stats"]["host_bytes"] == 0
    assert seen["stats"]["recomputed_blocks"] > 0


def test_a_plan_that_cannot_fit_has_its_sentence_and_its_exit_code(
    narrow_cluster: LocalCluster, tmp_path: Path
) -> None:
    arguments = ("--lengths", str(SHORT), "--activation-budget", "1KiB")
    job_id = narrow_cluster.submit(worker_job(tmp_path / "r.json", *arguments))
    job = narrow_cluster.wait_job(job_id, 30)
    assert job["state"] == "JOB_STATE_FAILED"
    assert job["workers"][0]["report"]["exit_code"] == DO_NOT_RESTART
    assert str(DO_NOT_RESTART) in job["message"]
    log = narrow_cluster.whole_log(job_id, 0)
    assert "the smallest activation_budget that works" in log and "step 1/" not in log
    assert narrow_cluster.leases() == []


def test_a_worker_whose_coordinator_is_not_there_says_so_and_ends_with_3(tmp_path: Path) -> None:
    address = "127.0.0.1:9"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, WORKER, "--lengths", "64", "--report", str(tmp_path / "r.json")],
        env={
            **os.environ,
            "PYTHONPATH": PATHS,
            "HYPERFRAMES_COORDINATOR": address,
            "HYPERFRAMES_JOB_ID": "job-of-nobody",
            "HYPERFRAMES_PLAN_TIMEOUT": "6s",
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == UNREACHABLE, done.stderr
    assert time.monotonic() - started < 45
    last = done.stderr.strip().splitlines()[-1]
    assert address in last and "is hfcoordinator running there?" in last
    assert "waits for the plan of job job-of-nobody" in done.stderr, "silence looks like a hang"


def test_counters_are_live_and_the_peak_stays_when_the_job_has_ended(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    looked = tmp_path / "looked"
    arguments = ("--lengths", ",".join(["64"] * 12), "--hold", str(looked))
    job_id = shared_cluster.submit(worker_job(tmp_path / "r-{rank}.json", *arguments))

    def trains() -> bool:
        return any(
            int(worker["steps"]) > 0 and int(worker["activation_bytes"]) > 0
            for worker in workers_of(shared_cluster, job_id)
        )

    wait_until(trains, 20, "the counters of a training worker")
    top = subprocess.run(
        [str(binary("client/cli:hfctl")), "--coordinator", shared_cluster.address, "top", "--once"],
        capture_output=True, text=True, timeout=10, check=True,
    )  # fmt: skip
    looked.touch()
    line = next(line for line in top.stdout.splitlines() if job_id in line)
    assert "activations 0B" not in line and "steps 0" not in line, line
    job = shared_cluster.wait_job(job_id, 30)
    assert job["state"] == "JOB_STATE_SUCCEEDED"
    report = shared_cluster.job(job_id)["workers"][0]["report"]
    assert int(report["activation_peak_bytes"]) > 0, report
    assert int(report["steps"]) == 12, report
