"""A link that does less than a tenth of its promise is left off, with a sentence, and only then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn

import hyperframes as hf
from hyperframes import _backend

GOOD = "2 x 64MiB@peer=100MB"
SLOW_PEER = "2 x 64MiB@peer=100MB,peer-promise=100GB"
SLOW_HOST = "2 x 64MiB@host=1MB,host-promise=100GB"


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backend, "_told", set())


def lendable(monkeypatch: pytest.MonkeyPatch, devices: str) -> dict[str, int]:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", devices)
    described = _backend.EmbeddedBackend(torch.device("cpu")).describe()
    return {d["uuid"]: int(d.get("lendable_bytes", 0)) for d in described["devices"]}


def test_a_link_that_promises_nothing_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all(lendable(monkeypatch, GOOD).values())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("devices", "left_off"), [(SLOW_PEER, "SIM-local-1"), (SLOW_HOST, "host:local")]
)
def test_a_link_below_a_tenth_is_left_off_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    devices: str,
    left_off: str,
) -> None:
    found = lendable(monkeypatch, devices)
    assert [uuid for uuid, nbytes in found.items() if nbytes == 0] == [left_off]
    said = capsys.readouterr().err
    assert said.startswith(f"HyperFrames: leave HyperFrames off SIM-local-0 -> {left_off}: ")
    assert "promised 100GB/s" in said and said.count("\n") == 1
    lendable(monkeypatch, devices)
    assert capsys.readouterr().err == ""


def test_the_other_ranks_of_a_node_keep_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert lendable(monkeypatch, SLOW_PEER)["SIM-local-0"] == 0
    assert capsys.readouterr().err == ""


def test_training_goes_on_without_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", SLOW_PEER)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))
    x = torch.randn(512, 64)

    def loss_fn(out: torch.Tensor, *_: Any) -> torch.Tensor:
        return out.square().mean()

    profile = hf.profile(model, x, loss_fn=loss_fn)
    with hf.hyperframes(
        model, profile=profile, activation_budget="1MiB", forbid=["recompute"]
    ) as framed:
        loss_fn(framed(x)).backward()
        moved = hf.stats(framed)
    assert moved["peer_bytes"] == 0
    assert moved["host_bytes"] > 0
