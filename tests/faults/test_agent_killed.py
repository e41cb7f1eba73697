"""kill -9 of an agent while a job trains."""

from __future__ import annotations

from pathlib import Path

from example_jobs import training_job
from local_cluster import LocalCluster, wait_until
from summary import load_run

STEPS = 60  # still training when the agent is back, on the fastest machine


def test_a_killed_agent_disturbs_nothing_and_comes_back_with_the_same_leases(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    def submit(name: str) -> str:
        report = tmp_path / f"{name}-{{rank}}.json"
        return cluster.submit(
            training_job("hyperframes", report, "--activation-budget", "8MiB", steps=STEPS)
        )

    reference = cluster.wait_job(submit("undisturbed"), 120)
    assert reference["state"] == "JOB_STATE_SUCCEEDED", reference["message"]

    job_id = submit("disturbed")
    wait_until(lambda: "step 2/" in _log(cluster, job_id), 60, "the second step", 0.05)
    pids = {worker["rank"]: worker["report"]["pid"] for worker in cluster.job(job_id)["workers"]}
    before = cluster.leases()
    assert before, "the job holds no lease, so this test would show nothing"
    agent = cluster.agents["b"]
    agent.kill()
    agent.start()
    cluster.wait_for_nodes(2)
    assert cluster.leases() == before
    after = {worker["rank"]: worker["report"]["pid"] for worker in cluster.job(job_id)["workers"]}
    assert after == pids

    job = cluster.wait_job(job_id, 120)
    assert job["state"] == "JOB_STATE_SUCCEEDED", job["message"]
    expected = [f"step {step + 1}/{STEPS} " for step in range(STEPS)]
    for rank in range(2):
        lines = [li for li in cluster.whole_log(job_id, rank).splitlines() if li.startswith("step")]
        assert [line[: len(mark)] for line, mark in zip(lines, expected, strict=True)] == expected
    undisturbed = load_run(tmp_path / "undisturbed-{rank}.json", 2)
    assert load_run(tmp_path / "disturbed-{rank}.json", 2).fingerprint == undisturbed.fingerprint
    wait_until(lambda: cluster.leases() == [], 5, "the leases to end with their job")


def _log(cluster: LocalCluster, job_id: str) -> str:
    try:
        return cluster.whole_log(job_id, 1)
    except RuntimeError:
        return ""
