"""Kills that both the fault tests and the soak runs make, and what has to hold after each."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from example_jobs import shell_job
from local_cluster import LocalCluster, wait_until
from watch import lent_bytes, lent_descriptors, lent_mappings, worker_pids

LOGS_CHECKED = 16


def lease_holder_job() -> dict[str, Any]:
    """Two ranks, one a node, that hold leases and use them; up in a fraction of a second."""
    return {
        "name": "lease-holder",
        "command": [sys.executable, str(Path(__file__).with_name("lease_holder.py"))],
        "ranks": 2,
        "placement": "PLACEMENT_SPREAD",
    }


def kill_one_worker(cluster: LocalCluster, spec: dict[str, Any], rank: int) -> float:
    """Starts the job, kills a rank that maps lent memory, returns the seconds until all is back.

    Back means: no node lends a byte, no lease is listed, no living process of the job and no agent
    maps lent memory, no agent holds a descriptor of it. The job has to end as FAILED.
    """
    job_id = cluster.submit(spec)
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


def submit_between_kills(
    cluster: LocalCluster, kills: int, seed: int, agents_too: bool = False
) -> Iterator[float]:
    """Submits jobs and kills daemons in between, by chance but the same for every run of a seed.

    Yields after each kill the seconds from it until every node was ALIVE again. At the end every
    acknowledged submission is still there under its key, and has succeeded.
    """
    chance = random.Random(seed)
    acknowledged: dict[str, str] = {}

    def submit(key: str) -> str:
        # A call that is under way when the coordinator dies is retried with its key.
        request = {"spec": shell_job(f"echo {key}"), "idempotency_key": key}
        return str(cluster.call("SubmitJob", request, 20)["job"]["id"])

    done = 0
    while done < kills:
        key = f"submission-{len(acknowledged)}"
        acknowledged[key] = submit(key)
        if chance.random() > 0.4:
            continue
        victims = [cluster.coordinator, *(cluster.agents.values() if agents_too else ())]
        victim = chance.choice(victims)
        before = {str(node["incarnation"]) for node in cluster.client.nodes()}
        # An agent that is back within the time of silence was never anything but ALIVE: what tells
        # that it is back is its new incarnation.
        new = int(victim is not cluster.coordinator)
        killed_at = time.monotonic()
        victim.kill()
        victim.start()
        done += 1

        def back(before: set[str] = before, new: int = new) -> bool:
            nodes = cluster.client.nodes()
            alive = [str(n["incarnation"]) for n in nodes if n["state"] == "NODE_STATE_ALIVE"]
            return len(alive) == len(cluster.agents) and len(set(alive) - before) == new

        wait_until(back, 30, "every node to be ALIVE again", 0.01)
        seconds = time.monotonic() - killed_at
        yield seconds
    assert len(set(acknowledged.values())) == len(acknowledged), "two submissions became one job"
    # Agents keep a bounded number of ended workers' logs: the newest are still there.
    for key, job_id in list(acknowledged.items())[-LOGS_CHECKED:]:
        cluster.wait_job(job_id, 120)
        assert cluster.whole_log(job_id, 0) == f"{key}\n"
    for key, job_id in acknowledged.items():
        assert submit(key) == job_id, f"{key} was lost"
        job = cluster.wait_job(job_id, 120)
        assert job["state"] == "JOB_STATE_SUCCEEDED", (key, job["state"], job["message"])
