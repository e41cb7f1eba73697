"""kill -9 of the coordinator: nothing acknowledged is lost, everything registers again."""

from __future__ import annotations

from pathlib import Path

from example_jobs import shell_job, training_job
from kills import submit_between_kills
from local_cluster import LocalCluster, wait_until

REGISTERED_WITHIN_S = 5.0
STEPS = 60  # still training when the coordinator is back, on the fastest machine


def test_jobs_plans_and_leases_survive_a_killed_coordinator(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    queued = cluster.submit(shell_job("true", ranks=64))
    job_id = cluster.submit(
        training_job(
            "hyperframes", tmp_path / "r-{rank}.json", "--activation-budget", "8MiB", steps=STEPS
        )
    )
    wait_until(lambda: "step 2/" in _log(cluster, job_id), 60, "the second step", 0.05)
    plan, leases = cluster.call("GetPlan", {"job_id": job_id}), cluster.leases()
    assert leases, "the job holds no lease, so this test would show nothing"

    cluster.coordinator.kill()
    cluster.coordinator.start()
    cluster.wait_for_nodes(2, REGISTERED_WITHIN_S)

    wait_until(lambda: cluster.leases() == leases, REGISTERED_WITHIN_S, "the same leases")
    assert cluster.call("GetPlan", {"job_id": job_id}) == plan
    assert cluster.job(queued)["state"] == "JOB_STATE_QUEUED"
    job = cluster.wait_job(job_id, 120)
    assert job["state"] == "JOB_STATE_SUCCEEDED", job["message"]
    lines = [li for li in cluster.whole_log(job_id, 0).splitlines() if li.startswith("step ")]
    assert len(lines) == STEPS


def test_random_kills_never_lose_an_acknowledged_submission(cluster: LocalCluster) -> None:
    back = list(submit_between_kills(cluster, kills=8, seed=7))
    assert max(back) <= REGISTERED_WITHIN_S, [f"{seconds:.2f}" for seconds in back]


def _log(cluster: LocalCluster, job_id: str) -> str:
    try:
        return cluster.whole_log(job_id, 0)
    except RuntimeError:
        return ""
