"""What `hfctl top` and the reports show of a worker: live while it trains, the last words after."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from example_jobs import training_job
from local_cluster import LocalCluster, wait_until

STEPS = 80  # several seconds of the fastest machine, and reports come once a second


def _reports(cluster: LocalCluster, job_id: str) -> list[dict[str, Any]]:
    return [worker.get("report", {}) for worker in cluster.job(job_id)["workers"]]


def _steps(cluster: LocalCluster, job_id: str) -> list[int]:
    return [int(report.get("steps", 0)) for report in _reports(cluster, job_id)]


def _train(cluster: LocalCluster, folder: Path, steps: int) -> str:
    report = folder / "run-{rank}.json"
    return cluster.submit(
        training_job("hyperframes", report, "--activation-budget", "8MiB", steps=steps)
    )


def test_counters_are_live_during_a_run_and_stay_after_its_end(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    job_id = _train(cluster, tmp_path, STEPS)
    seen: set[int] = set()

    def ended() -> bool:
        seen.update(_steps(cluster, job_id))
        return str(cluster.job(job_id)["state"]) == "JOB_STATE_SUCCEEDED"

    wait_until(ended, 120, "the job to succeed", 0.02)
    assert [steps for steps in seen if 0 < steps < STEPS], f"no live value was seen: {seen}"
    # Past the moment at which the agent forgets the ends that the coordinator knows.
    cluster.agents["a"].kill()
    cluster.agents["a"].start()
    cluster.wait_for_nodes(2)
    assert _steps(cluster, job_id) == [STEPS, STEPS]
    assert all(int(r["activation_peak_bytes"]) > 0 for r in _reports(cluster, job_id))


def test_a_killed_worker_leaves_its_last_counters(cluster: LocalCluster, tmp_path: Path) -> None:
    job_id = _train(cluster, tmp_path, 1000)
    wait_until(
        lambda: min(_steps(cluster, job_id), default=0) > 0, 60, "a step of every rank", 0.05
    )
    before = _steps(cluster, job_id)
    os.kill(int(_reports(cluster, job_id)[0]["pid"]), signal.SIGKILL)
    job = cluster.wait_job(job_id, 60)
    assert job["state"] == "JOB_STATE_FAILED"
    after = _steps(cluster, job_id)
    assert after[0] >= before[0] > 0
