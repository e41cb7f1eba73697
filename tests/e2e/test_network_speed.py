"""A network that carries far less than it was said to: once frames have shown it, plans know."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_cluster import LocalCluster, Node, wait_until
from two_nodes import GPUS, finish, hfctl, nodes_of, worker_job

# As fast as memory, so that a plan borrows over it at once; a step's frames take half a minute, of
# which a step on a slow machine hides a part.
TOLD = 1_000_000_000_000
CARRIES = "1MB"
SLOW = {
    "host-bytes": "0B",
    "network-bandwidth": str(TOLD),
    "network-latency": "1us",
    "simulated-network-bandwidth": CARRIES,
}
BUDGET = ("--activation-budget", "5MiB")


@pytest.fixture(scope="module")
def slow() -> Iterator[LocalCluster]:
    nodes = [Node(name, GPUS, dict(SLOW)) for name in ("a", "b")]
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as path,
        LocalCluster(Path(path), nodes) as started,
    ):
        yield started


def measured(cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    """By node, what it has measured of its way to the other one."""
    nodes = json.loads(hfctl(cluster, "-o", "json", "nodes"))["nodes"]
    return {
        node["node"]: node["network_measured"][0] for node in nodes if node.get("network_measured")
    }


def metrics(cluster: LocalCluster, node: str) -> str:
    http = cluster.agents[node].ready["http"]
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_plan_goes_by_what_the_network_carried_and_not_by_what_it_was_said_to(
    slow: LocalCluster, tmp_path: Path
) -> None:
    def train(name: str, mode: str = "on") -> tuple[dict[str, Any], dict[str, Any]]:
        """What a job reports, and the job."""
        report = tmp_path / f"{name}.json"
        arguments = BUDGET if mode == "on" else ()
        job = finish(slow, slow.submit(worker_job(report, 1, *arguments, mode=mode)))
        return json.loads(report.read_text()), job

    plain, _ = train("plain", mode="off")
    believes, job = train("believes")
    assert believes["peer_bytes"][0] > 0, "nothing has crossed yet: the plan goes by the promise"
    own, other = nodes_of(job)
    wait_until(lambda: own in measured(slow), 60, "the report of what the frames got")
    figure = measured(slow)[own]
    assert figure["node"] == other
    assert 0 < float(figure["bytes_per_second"]) < TOLD / 1000

    # The same job again, on whichever node: recomputing is quicker than such a network, but for
    # what it carries while the step computes anyway.
    knows, _ = train("knows")
    assert knows["peer_bytes"][0] < believes["peer_bytes"][0] / 2
    assert plain["digests"] == believes["digests"] == knows["digests"]

    table = hfctl(slow, "nodes")
    assert "simulated" in table and f"{other} " in table.split("MEASURED", 1)[1], table
    page = metrics(slow, own)
    assert 'hyperframes_network_promised_bytes_per_second{kind="simulated"}' in page
    assert f'hyperframes_network_measured_bytes_per_second{{peer="{other}"}}' in page
