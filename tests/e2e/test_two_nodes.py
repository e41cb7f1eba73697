"""A job whose own node cannot lend enough, and another node can: its frames cross the two."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, wait_until
from two_nodes import (
    BORROWS,
    GPUS,
    finish,
    hfctl,
    nodes_of,
    transfer_pids,
    two_nodes,
    worker_job,
)


@pytest.fixture(scope="module")
def connected() -> Iterator[LocalCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as path,
        LocalCluster(Path(path), two_nodes()) as started,
    ):
        yield started


def test_a_job_borrows_from_another_node_and_is_bit_equal(
    connected: LocalCluster, tmp_path: Path
) -> None:
    on, off = tmp_path / "on.json", tmp_path / "off.json"
    job = finish(connected, connected.submit(worker_job(on, 3, *BORROWS)))
    finish(connected, connected.submit(worker_job(off, 3, mode="off")))
    seen = json.loads(on.read_text())
    assert seen["digests"] == json.loads(off.read_text())["digests"]

    _, other = nodes_of(job)
    far = [lease for lease in seen["stats"]["leases"] if lease["node"] == other]
    assert far and far[0]["device"] == f"SIM-{other}-0", seen["stats"]["leases"]
    assert far[0]["staging_bytes"] > 0
    assert seen["stats"]["peer_bytes"] > far[0]["bytes"] / 2, "the frames went there"
    plan = hfctl(connected, "plan", job["id"])
    line = next(line for line in plan.splitlines() if far[0]["device"] in line)
    assert f" {other} " in line, plan
    assert f"{far[0]['device']} on node {other}" in hfctl(connected, "explain", job["id"])
    assert f"on node {other}" in hfctl(connected, "job", "describe", job["id"])
    wait_until(lambda: connected.leases() == [], 30, "the leases to end with their job")
    wait_until(lambda: not transfer_pids(connected, other), 20, "hftransfer to end with them")


def test_nodes_without_a_network_lend_nothing_to_each_other(tmp_path: Path) -> None:
    apart = [Node(name, GPUS, {"host-bytes": "0B"}) for name in ("a", "b")]
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as path,
        LocalCluster(Path(path), apart) as cluster,
    ):
        job_id = cluster.submit(worker_job(tmp_path / "none.json", 1, *BORROWS))
        job = cluster.wait_job(job_id, 180)
        assert job["state"] == "JOB_STATE_FAILED", job["message"]
        assert "the smallest activation_budget that works" in cluster.whole_log(job_id, 0)
