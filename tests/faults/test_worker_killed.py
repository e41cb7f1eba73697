"""kill -9 of a worker: every leased byte back within two seconds, counted on the device."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from example_jobs import training_job
from local_cluster import LocalCluster, wait_until
from watch import lent_bytes, lent_descriptors, lent_mappings, worker_pids

KILLS = 20
BACK_WITHIN_S = 2.0


def kill_one_worker(cluster: LocalCluster, report: Path, rank: int) -> float:
    """Starts a job, kills a rank that maps lent memory, returns the seconds until all is back."""
    job_id = cluster.submit(
        training_job("hyperframes", report, "--activation-budget", "8MiB", steps=1000)
    )
    wait_until(lambda: len(cluster.leases()) >= 2, 60, "the job's leases", 0.05)
    wait_until(lambda: lent_mappings(worker_pids(job_id)) > 0, 30, "workers to map them", 0.05)
    workers = {w["rank"]: int(w["report"]["pid"]) for w in cluster.job(job_id)["workers"]}
    os.kill(workers[rank], signal.SIGKILL)

    def back() -> bool:
        agents = [agent.pid for agent in cluster.agents.values()]
        return (
            lent_bytes(cluster) == 0
            and not cluster.leases()
            and lent_mappings([*worker_pids(job_id), *agents]) == 0
            and sum(map(lent_descriptors, agents)) == 0
        )

    seconds = wait_until(back, 30, "every leased byte to come back")
    job = cluster.wait_job(job_id, 30)
    assert job["state"] == "JOB_STATE_FAILED", job
    return seconds


def test_every_leased_byte_is_back_within_two_seconds(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    seconds = [
        kill_one_worker(cluster, tmp_path / f"{n}-{{rank}}.json", n % 2) for n in range(KILLS)
    ]
    assert max(seconds) <= BACK_WITHIN_S, [f"{s:.2f}" for s in seconds]
