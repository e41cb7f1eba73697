"""Every alert fires once on a real cluster, for a fault that is really made to it.

The rules are the shipped ones in what they ask and compare; only their times are shorter here:
`for` is a second, windows of minutes and half hours are seconds, the six hours of history are two
minutes. An alert counts when Prometheus has had it firing at any time since its fault began.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from example_jobs import shell_job
from local_cluster import ENDED, ROOT, LocalCluster, Node, wait_until
from local_prometheus import Prometheus
from telemetry.worker_jobs import worker_job

FIRING_TIMEOUT_S = 60.0
START_TIMEOUT_S = 30.0
RULES = ROOT / "dashboards" / "alerts.yml"
SPEED = "hyperframes:copy_bytes_per_busy_second:rate5m"
# A MiB takes a quarter of a second, and one: so long that a busy machine's delays do not matter.
STEADY_LINK, SLOW_LINK, FAST_LINK = "4MiB", "1MiB", "0"
# Peers only: host memory would be the faster place.
FLAGS = {"peer-bandwidth": STEADY_LINK, "host-bytes": "0"}
PACES = (
    (r"for: \S+", "for: 1s"),
    (r"\[5m\]", "[5s]"),
    (r"\[10m\]", "[30s]"),  # Longer than a coordinator stands still: its scrapes stop with it.
    (r"\[30m\]", "[3s]"),
    (r"offset 30m", "offset 3s"),
    (r"\[6h\]", "[2m]"),
)


def alerts_of_the_tree() -> set[str]:
    return set(re.findall(r"- alert: (\w+)", RULES.read_text()))


def hurried(rules: str) -> str:
    for pattern, replacement in PACES:
        rules, times = re.subn(pattern, replacement, rules)
        assert times, f"no rule says {pattern!r} any more"
    assert not re.search(r"\[\d+[mh]\]", rules.replace("[2m]", "")), "a window stayed long"
    return rules


class HurriedPrometheus(Prometheus):
    def _configure(self, cluster: LocalCluster) -> None:
        super()._configure(cluster)
        path = self.directory / "dashboards" / RULES.name
        path.write_text(hurried(path.read_text()))


@dataclass
class World:
    cluster: LocalCluster
    prometheus: Prometheus
    began: float

    def raised(self, since: float, state: str = "firing") -> set[str]:
        """Names of alerts that were in that state at any time since then."""
        series = self.prometheus.query_range(f'ALERTS{{alertstate=~"{state}"}}', since, time.time())
        return {each["metric"]["alertname"] for each in series}

    def wait_until_raised(
        self, names: set[str], since: float, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        def all_raised() -> bool:
            meanwhile()
            return self.raised(since) >= names

        try:
            wait_until(all_raised, FIRING_TIMEOUT_S, "alerts", 0.2)
        except TimeoutError:
            jobs = [(job["state"], job["message"]) for job in self.cluster.client.jobs(5)]
            pending = self.raised(since, "pending") - self.raised(since)
            missing = names - self.raised(since)
            pytest.fail(f"{missing} never fired, {pending} were pending; newest jobs: {jobs}")

    def start(self, way: str) -> str:
        """A job of faulty_worker.py that goes in that way; has stepped when this returns."""
        began = time.time()
        job_id = self.cluster.submit(worker_job(way, self.cluster.directory))

        def has_stepped() -> bool:
            assert self.cluster.job(job_id)["state"] not in ENDED, self.cluster.whole_log(job_id, 0)
            if job_id not in {job for _, job, _, _ in self.cluster.leases()}:
                return False
            steps = self.prometheus.query_range("hyperframes_steps_total", began, time.time())
            return any(
                float(after) > float(before)
                for series in steps
                for (_, before), (_, after) in itertools.pairwise(series["values"])
            )

        wait_until(has_stepped, START_TIMEOUT_S, f"a step of '{way}'", 0.2)
        return job_id

    @contextlib.contextmanager
    def job(self, way: str) -> Iterator[None]:
        """The same, ended with the block."""
        job_id = self.start(way)
        try:
            yield
        finally:
            self.cluster.client.cancel(job_id)
            self.cluster.wait_job(job_id, START_TIMEOUT_S)

    def links_are(self, peer_bandwidth: str) -> None:
        """Agents of another mind are started again; no job may run."""
        for agent in self.cluster.agents.values():
            if agent.flags["peer-bandwidth"] == peer_bandwidth:
                continue
            agent.stop()
            agent.flags["peer-bandwidth"] = peer_bandwidth
            agent.start()
        self.cluster.wait_for_nodes(len(self.cluster.agents))

    def watch_the_link(self, values: int) -> None:
        """Until the speed of the copies has been recorded that often."""
        started = time.time()

        def known() -> bool:
            seen = self.prometheus.query_range(f"{SPEED} > 0", started, time.time())
            return any(len({at for at, _ in series["values"]}) >= 2 * values for series in seen)

        wait_until(known, FIRING_TIMEOUT_S, f"{values} values of the link's speed", 0.2)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    # In memory: a disk that others keep busy would be a slow store from the beginning.
    directory = Path(tempfile.mkdtemp(prefix="hf-", dir="/dev/shm" if _has_shm() else None))
    nodes = [Node(name, "2 x 256MiB", dict(FLAGS)) for name in ("a", "b")]
    try:
        with (
            LocalCluster(directory / "c", nodes, {"offline-after": "6s"}) as cluster,
            HurriedPrometheus(directory / "p", cluster) as prometheus,
        ):
            began = time.time()
            wait_until(
                lambda: [sample["value"][1] for sample in prometheus.query("up")] == ["1"] * 3,
                START_TIMEOUT_S,
                "a scrape of every daemon",
            )
            yield World(cluster, prometheus, began)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _has_shm() -> bool:
    return os.access("/dev/shm", os.W_OK)


# ---- Faults: each is there for as long as its block lasts, which gets what to do meanwhile ----

Fault = Callable[[World], contextlib.AbstractContextManager[Callable[[], object]]]


def nothing_more() -> None:
    """The fault acts by itself."""


@contextlib.contextmanager
def a_link_that_slows_down(world: World) -> Iterator[Callable[[], object]]:
    world.links_are(STEADY_LINK)
    with world.job("steps"):
        world.watch_the_link(values=5)
    world.links_are(SLOW_LINK)
    with world.job("steps"):
        yield nothing_more


@contextlib.contextmanager
def a_job_that_leases_all_of_its_neighbour(world: World) -> Iterator[Callable[[], object]]:
    with world.job("full"):
        yield nothing_more


@contextlib.contextmanager
def frames_that_outgrow_their_lease(world: World) -> Iterator[Callable[[], object]]:
    world.links_are(FAST_LINK)
    with world.job("overflows"):
        yield nothing_more


@contextlib.contextmanager
def frames_that_nobody_drops(world: World) -> Iterator[Callable[[], object]]:
    world.links_are(FAST_LINK)
    with world.job("leaks"):
        yield nothing_more


@contextlib.contextmanager
def a_store_that_somebody_locks(world: World) -> Iterator[Callable[[], object]]:
    (database,) = (world.cluster.directory / "state").glob("*.sqlite")
    over = threading.Event()

    def lock_again_and_again() -> None:
        connection = sqlite3.connect(database, timeout=10, isolation_level=None)
        while not over.is_set():
            connection.execute("BEGIN IMMEDIATE")
            over.wait(0.4)
            connection.execute("ROLLBACK")
            over.wait(0.02)
        connection.close()

    thread = threading.Thread(target=lock_again_and_again)
    thread.start()
    try:
        yield lambda: world.cluster.submit(shell_job("exit 0"))
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def a_job_that_can_never_fit(world: World) -> Iterator[Callable[[], object]]:
    job_id = world.cluster.submit(shell_job("exit 0", ranks=64))
    yield nothing_more
    world.cluster.client.cancel(job_id)


@contextlib.contextmanager
def a_coordinator_that_stands_still(world: World) -> Iterator[Callable[[], object]]:
    began = time.time()
    pid = world.cluster.coordinator.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        world.wait_until_raised({"HyperframesHeartbeatGap"}, began)
    finally:
        os.kill(pid, signal.SIGCONT)
    yield nothing_more


@contextlib.contextmanager
def a_rank_that_dies_while_it_saves(world: World) -> Iterator[Callable[[], object]]:
    job_id = world.cluster.submit(worker_job("dies", world.cluster.directory))
    job = world.cluster.wait_job(job_id, START_TIMEOUT_S)
    assert job["state"] == "JOB_STATE_FAILED", job
    assert "Traceback" not in world.cluster.whole_log(job_id, 0), world.cluster.whole_log(job_id, 0)
    yield nothing_more


@contextlib.contextmanager
def an_agent_that_is_killed(world: World) -> Iterator[Callable[[], object]]:
    agent = world.cluster.agents["b"]
    agent.kill()
    yield nothing_more
    agent.start()
    world.cluster.wait_for_nodes(2)


@contextlib.contextmanager
def an_agent_that_lost_its_records_of_a_worker(world: World) -> Iterator[Callable[[], object]]:
    """The worker gives its leases to the new agent, which does not know it. The coordinator, which
    would clear that up, is away. Last of all: it leaves the cluster broken.
    """
    job_id = world.start("full")
    (worker,) = world.cluster.job(job_id)["workers"]
    world.cluster.coordinator.kill()
    agent = world.cluster.agents[worker["node"]]
    agent.kill()
    for record in (world.cluster.directory / worker["node"] / "workers").glob(f"{job_id}-*"):
        shutil.rmtree(record)
    agent.start()
    yield nothing_more


FAULTS: dict[Fault, set[str]] = {
    a_link_that_slows_down: {"HyperframesSlowTransport", "HyperframesStalls"},
    a_job_that_leases_all_of_its_neighbour: {
        "HyperframesLentMemoryNearlyFull",
        "HyperframesLevelImbalance",
    },
    frames_that_outgrow_their_lease: {"HyperframesFrameOverflows"},
    frames_that_nobody_drops: {"HyperframesLeakedFrames"},
    a_store_that_somebody_locks: {"HyperframesSlowStore"},
    a_job_that_can_never_fit: {"HyperframesJobsWait"},
    a_coordinator_that_stands_still: {"HyperframesHeartbeatGap", "HyperframesCoordinatorStalls"},
    a_rank_that_dies_while_it_saves: {"HyperframesCheckpointAborts"},
    an_agent_that_is_killed: {
        "HyperframesDaemonDown",
        "HyperframesNodeSuspected",
        "HyperframesNodeOffline",
    },
    an_agent_that_lost_its_records_of_a_worker: {"HyperframesLeakedLeases"},
}


def test_every_alert_has_a_fault_that_raises_it() -> None:
    assert set().union(*FAULTS.values()) == alerts_of_the_tree()


def test_a_healthy_cluster_raises_nothing(world: World) -> None:
    world.links_are(STEADY_LINK)
    with world.job("steps"):
        world.watch_the_link(values=6)
        assert world.raised(world.began, "firing") == set()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_alerts_fire_for(world: World, fault: Fault) -> None:
    began = time.time()
    with fault(world) as meanwhile:
        world.wait_until_raised(FAULTS[fault], began, meanwhile)
