"""A job whose frames cross two nodes: the far agent, hftransfer on either side, the worker die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hyperframes.errors as errors
from local_cluster import ENDED, LocalCluster, process_environments, wait_until
from two_nodes import BORROWS, finish, nodes_of, transfer_pids, two_nodes, worker_job

STEPS = 32


@pytest.fixture
def connected(run_directory: Path) -> Iterator[LocalCluster]:
    with LocalCluster(run_directory, two_nodes()) as started:
        yield started


def is_half_done(cluster: LocalCluster, job_id: str) -> bool:
    """AssertionError: it has ended instead."""
    job = cluster.job(job_id)
    try:
        log = cluster.whole_log(job_id, 0)
    except errors.HyperFramesError:
        log = ""  # Not started yet.
    assert job["state"] not in ENDED, (job["message"], log[-3000:])
    return f"step {STEPS // 2}/" in log


@dataclass
class Halfway:
    """A job that has made half of its steps, with frames on the other node, and waits."""

    job_id: str
    waits_for: Path

    def go_on(self) -> None:
        self.waits_for.touch()


def submit(
    cluster: LocalCluster, report: Path, restarts: int = 0, budget: tuple[str, ...] = BORROWS
) -> Halfway:
    waits_for = report.with_suffix(".go")
    spec = worker_job(report, STEPS, *budget, "--hold", str(waits_for))
    job_id = cluster.submit({**spec, "max_restarts": restarts})
    wait_until(lambda: is_half_done(cluster, job_id), 180, "half of the steps", 0.05)
    assert cluster.leases(), "the job holds no lease, so this test would show nothing"
    return Halfway(job_id, waits_for)


def digests(cluster: LocalCluster, report: Path) -> Any:
    """Of the same steps without HyperFrames."""
    finish(cluster, cluster.submit(worker_job(report, STEPS, mode="off")))
    return json.loads(report.read_text())["digests"]


def test_a_killed_far_agent_disturbs_nothing_and_comes_back_with_the_same_leases(
    connected: LocalCluster, tmp_path: Path
) -> None:
    halfway = submit(connected, tmp_path / "on.json")
    _, other = nodes_of(connected.job(halfway.job_id))
    before = connected.leases()
    connected.agents[other].kill()
    connected.agents[other].start()
    wait_until(lambda: connected.leases() == before, 20, "the same leases")
    connected.agents[other].kill()
    halfway.go_on()
    job = finish(connected, halfway.job_id)
    connected.agents[other].start()
    assert job.get("restarts", 0) == 0
    seen = json.loads((tmp_path / "on.json").read_text())
    assert seen["digests"] == digests(connected, tmp_path / "off.json")
    wait_until(lambda: connected.leases() == [], 30, "the leases to end with their job")


def near_transfers() -> list[int]:
    """Those that use other nodes for a worker."""
    children = []
    for pid, _ in process_environments():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/hftransfer") and b"--worker-descriptor" in words:
            children.append(pid)
    return children


@pytest.mark.parametrize("side", ["far", "near"])
def test_a_killed_hftransfer_fails_the_step_by_name_and_the_job_restarts(
    connected: LocalCluster, tmp_path: Path, side: str
) -> None:
    halfway = submit(connected, tmp_path / "on.json", restarts=1)
    job_id = halfway.job_id
    own, other = nodes_of(connected.job(job_id))
    if side == "far":
        victims = transfer_pids(connected, other)
    else:
        agent = connected.agents[own].pid
        victims = [pid for pid in near_transfers() if parent_of(pid) == agent]
    assert len(victims) == 1
    halfway.go_on()  # Into a step, at any point of it.
    os.kill(victims[0], signal.SIGKILL)
    job = finish(connected, job_id)
    assert job["restarts"] == 1
    first = b"".join(connected.client.logs(job_id, rank=0, attempt=1)).decode()
    assert f"on node {other} is lost" in first, first[-2000:]
    assert "restart the job from its last checkpoint" in first
    seen = json.loads((tmp_path / "on.json").read_text())
    assert seen["digests"] == digests(connected, tmp_path / "off.json")
    wait_until(lambda: connected.leases() == [], 30, "the leases to end with their job")


def test_a_node_that_is_lost_for_good_is_done_without(
    connected: LocalCluster, tmp_path: Path
) -> None:
    halfway = submit(connected, tmp_path / "on.json", restarts=1, budget=BORROWS[:2])
    own, other = nodes_of(connected.job(halfway.job_id))
    assert any(device.startswith(f"SIM-{other}") for _, _, device, _ in connected.leases())
    (transfer,) = transfer_pids(connected, other)
    connected.agents[other].kill()
    halfway.go_on()
    os.kill(transfer, signal.SIGKILL)
    job = finish(connected, halfway.job_id)
    assert job["restarts"] == 1
    seen = json.loads((tmp_path / "on.json").read_text())
    assert {lease["node"] for lease in seen["stats"]["leases"]} <= {own}
    assert seen["stats"]["recomputed_bytes"] > 0, "what the other node held is computed again"
    assert seen["digests"] == digests(connected, tmp_path / "off.json")


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/stat").read_text()
    return int(status.rsplit(")", 1)[1].split()[1])


def test_a_killed_worker_gives_the_other_nodes_bytes_back(
    connected: LocalCluster, tmp_path: Path
) -> None:
    job_id = submit(connected, tmp_path / "on.json").job_id
    os.kill(int(connected.job(job_id)["workers"][0]["report"]["pid"]), signal.SIGKILL)
    wait_until(lambda: connected.leases() == [], 30, "the lease on the other node to come back")
    assert connected.wait_job(job_id, 60)["state"] == "JOB_STATE_FAILED"
