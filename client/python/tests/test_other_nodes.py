"""A grant on another node: what the engine is opened with, and what is planned within it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hyperframes import _backend, _native
from hyperframes._backend import ClusterBackend
from hyperframes._config import Cluster

GIB = 1 << 30
NEAR = {
    "lease_id": "lease-1", "token": "1" * 32, "device": "host:a", "tier": "TIER_HOST",
    "bytes": "4096", "worker_socket": "/run/a.sock", "node": "a",
}  # fmt: skip
FAR = {
    "lease_id": "lease-2", "token": "2" * 32, "device": "SIM-b-0", "tier": "TIER_PEER",
    "bytes": str(GIB), "worker_socket": "/run/a.sock", "node": "b",
    "transfer_address": "127.0.0.1:4000", "staging_bytes": str(1 << 20),
}  # fmt: skip


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> ClusterBackend:
    """A backend that was granted a lease on its own node and one on another."""
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "uuid=SIM-a-0,1GiB")
    monkeypatch.setattr(_native, "Machine", FakeMachine)
    where = Cluster("127.0.0.1:1", "job-1", "token", "SIM-a-0", 0, 1, 1.0)
    backend = ClusterBackend(torch.device("cpu"), where)
    backend._answer = {
        "leases": [NEAR, FAR],
        "gpu": {"uuid": "SIM-a-0", "node": "a", "usable_bytes": str(GIB)},
        "links": [{"from": "SIM-a-0", "to": "SIM-b-0", "bytes_per_second": 1e9, "latency_s": 1e-5}],
    }
    return backend


class FakeMachine:
    def __init__(self, options: dict[str, Any]) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"devices": [{"uuid": "SIM-a-0", "node": "a"}], "links": []}


def test_the_engine_learns_how_another_node_is_reached(
    granted: ClusterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(_backend, "_map", lambda machine, options: opened.append(options))
    granted.open_engine({}, {})
    near, far = opened[0]["leases"]
    assert "transfer_address" not in near and near["worker_socket"] == "/run/a.sock"
    assert (far["node"], far["transfer_address"]) == ("b", "127.0.0.1:4000")
    assert far["staging_bytes"] == 1 << 20
    granted.open_engine({}, {"no_lenders": True})
    assert opened[1]["leases"] == []


def test_a_new_shape_is_planned_with_the_lender_on_its_node(granted: ClusterBackend) -> None:
    problem = {
        "rank": 0, "gpu": "SIM-a-0", "activation_budget": 14 << 20,
        "blocks": [
            {
                "name": f"block.{number}", "forward_s": 0.05, "backward_s": 0.1,
                "not_recomputable": True,
                "storages": [{"ordinal": 0, "bytes": 4 << 20, "dtype": "uint8"}],
            }
            for number in range(6)
        ],
    }  # fmt: skip
    plan = granted.plan(problem, {})
    (lease,) = plan["ranks"][0]["leases"]
    assert (lease["device"], lease["node"]) == ("SIM-b-0", "b")
    assert int(lease["staging_bytes"]) > 0
