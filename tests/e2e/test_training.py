"""The example's training job, small, in all modes through the cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import hyperframes.errors as errors
from example_jobs import shell_job, training_job
from local_cluster import LocalCluster, wait_until
from summary import RunSummary, load_run


def train(cluster: LocalCluster, mode: str, folder: Path, *extra: str) -> tuple[str, RunSummary]:
    report = folder / f"{mode}-{{rank}}.json"
    job_id = cluster.submit(training_job(mode, report, *extra))
    job = cluster.wait_job(job_id, 120)
    logs = [cluster.whole_log(job_id, rank)[-2000:] for rank in range(2)]
    assert job["state"] == "JOB_STATE_SUCCEEDED", (job["message"], logs)
    return job_id, load_run(report, 2)


def test_three_modes_are_bit_equal_and_the_budget_holds(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    _, nothing = train(shared_cluster, "nothing", tmp_path)
    _, checkpointing = train(shared_cluster, "checkpointing", tmp_path)
    budget = int(0.4 * min(nothing.activation_peaks))
    job_id, framed = train(
        shared_cluster, "hyperframes", tmp_path, "--activation-budget", str(budget)
    )
    assert len(nothing.fingerprint) == 6
    assert checkpointing.fingerprint == nothing.fingerprint
    assert framed.fingerprint == nothing.fingerprint
    assert max(framed.activation_peaks) <= budget
    assert framed.peer_bytes + framed.host_bytes + framed.recomputed_bytes > 0
    assert framed.budget == budget

    plan = shared_cluster.call("GetPlan", {"job_id": job_id})
    assert len(plan["ranks"]) == 2
    assert all(block["reason"] for rank in plan["ranks"] for block in rank["blocks"])
    assert all(int(rank["predicted_activation_peak"]) <= budget for rank in plan["ranks"])
    assert shared_cluster.leases() == [], "leases outlive their job"


def test_a_rank_killed_with_leases_is_restarted_with_a_plan_of_its_own(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    report = tmp_path / "restarted-{rank}.json"
    spec = training_job("hyperframes", report, "--activation-budget", "8MiB", steps=8)
    job_id = shared_cluster.submit({**spec, "max_restarts": 2})
    wait_until(lambda: "step 2/" in log(shared_cluster, job_id), 40, "the second step", 0.05)
    assert shared_cluster.leases(), "the job holds no lease, so this test would show nothing"
    before = shared_cluster.call("GetPlan", {"job_id": job_id})
    os.kill(shared_cluster.job(job_id)["workers"][1]["report"]["pid"], signal.SIGKILL)
    job = shared_cluster.wait_job(job_id, 120)
    assert job["state"] == "JOB_STATE_SUCCEEDED", (job, log(shared_cluster, job_id)[-2000:])
    assert job["restarts"] == 1
    after = shared_cluster.call("GetPlan", {"job_id": job_id})
    assert int(after["epoch"]) > int(before["epoch"])
    assert shared_cluster.leases() == []


def log(cluster: LocalCluster, job_id: str) -> str:
    try:
        return cluster.whole_log(job_id, 0)
    except errors.HyperFramesError:
        return ""  # Not started yet.


def test_a_plan_that_cannot_fit_ends_the_job_before_training_with_the_smallest_budget(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    report = tmp_path / "none-{rank}.json"
    job_id = shared_cluster.submit(
        training_job("hyperframes", report, "--activation-budget", "1KiB")
    )
    job = shared_cluster.wait_job(job_id, 120)
    assert job["state"] == "JOB_STATE_FAILED"
    logs = "".join(shared_cluster.whole_log(job_id, rank) for rank in range(2))
    assert "smallest" in logs and "step 1/" not in logs


def test_another_jobs_token_is_refused(shared_cluster: LocalCluster) -> None:
    jobs = [
        shared_cluster.submit(shell_job("echo $HYPERFRAMES_JOB_TOKEN; sleep 60")) for _ in range(2)
    ]

    def token(job_id: str) -> str:
        try:
            return shared_cluster.whole_log(job_id, 0).strip()
        except errors.HyperFramesError:
            return ""

    try:
        wait_until(lambda: all(map(token, jobs)), 20, "both jobs to run")
        request = {
            "job_id": jobs[0],
            "job_token": token(jobs[1]),
            "world_size": 1,
            "rank": {"rank": 0},
        }
        with pytest.raises(errors.PermissionDenied, match=jobs[0]):
            shared_cluster.call("CreatePlan", request)
    finally:
        for job_id in jobs:
            shared_cluster.call("CancelJob", {"id": job_id})
