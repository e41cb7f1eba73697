"""kill -9 of the coordinator: nothing acknowledged is lost, everything registers again."""

from __future__ import annotations

import random
from pathlib import Path

from example_jobs import shell_job, training_job
from local_cluster import ENDED, LocalCluster, wait_until

REGISTERED_WITHIN_S = 5.0


def test_jobs_plans_and_leases_survive_a_killed_coordinator(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    queued = cluster.submit(shell_job("true", ranks=64))
    job_id = cluster.submit(
        training_job(
            "hyperframes", tmp_path / "r-{rank}.json", "--activation-budget", "8MiB", steps=12
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
    assert len(lines) == 12


def test_random_kills_never_lose_an_acknowledged_submission(cluster: LocalCluster) -> None:
    """Seeded: the same kills between the same submissions every time."""
    chance = random.Random(7)
    acknowledged: dict[str, str] = {}
    for number in range(30):
        # A call that is under way when the coordinator dies is retried with its key.
        key = f"submission-{number}"
        request = {"spec": shell_job(f"echo {number}"), "idempotency_key": key}
        acknowledged[key] = cluster.call("SubmitJob", request, 20)["job"]["id"]
        if chance.random() < 0.3:
            cluster.coordinator.kill()
            cluster.coordinator.start()
    assert len(set(acknowledged.values())) == 30
    for key, job_id in acknowledged.items():
        again = {"spec": shell_job("echo again"), "idempotency_key": key}
        # Same key, same job: also after restarts.
        assert cluster.call("SubmitJob", again, 20)["job"]["id"] == job_id
        job = cluster.wait_job(job_id, 60)
        assert job["state"] in ENDED and job["state"] == "JOB_STATE_SUCCEEDED", job["message"]


def _log(cluster: LocalCluster, job_id: str) -> str:
    try:
        return cluster.whole_log(job_id, 0)
    except RuntimeError:
        return ""
