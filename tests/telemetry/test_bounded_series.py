"""Jobs come and go; the metrics that they leave behind do not grow with their number."""

from __future__ import annotations

import statistics
import time
import urllib.request

from example_jobs import shell_job
from local_cluster import LocalCluster

FIRST, MORE = 4, 40
SCRAPE_LIMIT_S = 0.05


def scrape(address: str) -> set[str]:
    """The series of one daemon, without values."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if line and not line.startswith("#")}


def run_jobs(cluster: LocalCluster, count: int) -> list[str]:
    jobs = [cluster.submit(shell_job("exit $((RANK % 2))", ranks=2)) for _ in range(count)]
    for job_id in jobs:
        cluster.wait_job(job_id, 60)
    return jobs


def test_series_do_not_grow_with_the_jobs_that_have_ended(cluster: LocalCluster) -> None:
    daemons = [cluster.coordinator, *cluster.agents.values()]
    run_jobs(cluster, FIRST)
    before = [scrape(daemon.ready["http"]) for daemon in daemons]
    jobs = run_jobs(cluster, MORE)
    after = [scrape(daemon.ready["http"]) for daemon in daemons]
    new = set().union(*after) - set().union(*before)
    # What the first jobs may not have met yet is one series for each end of a call or of a lease.
    assert len(new) <= 5, sorted(new)
    assert not [line for job_id in jobs for lines in after for line in lines if job_id in line]


def test_a_scrape_is_quick(cluster: LocalCluster) -> None:
    run_jobs(cluster, FIRST)
    for daemon in (cluster.coordinator, *cluster.agents.values()):
        seconds = []
        for _ in range(9):
            started = time.monotonic()
            assert len(scrape(daemon.ready["http"])) > 20
            seconds.append(time.monotonic() - started)
        assert statistics.median(seconds) < SCRAPE_LIMIT_S, seconds
