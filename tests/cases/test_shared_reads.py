"""A storage that one block saved and others read: known by phase, reloaded no more than needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hyperframes as hf
from cases.fake_engine import FakeBackend
from cases.shared_storages import make_rotary, make_unet
from cases.small_gpt import DEVICE, gradients, same_gradients

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="its devices are simulated")


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss = loss_of(model(x))
    loss.backward()
    return [loss.detach(), *gradients(model)]


@pytest.fixture(autouse=True)
def two_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 64MiB")


def test_the_profile_knows_when_a_backward_reads_what_another_block_saved() -> None:
    model, x = make_unet(levels=2)
    profile = hf.profile(model, x, loss_fn=loss_of)
    result = profile.block("down.0").storages[-1]
    up = profile.block("up.1")
    (skip,) = up.shared
    assert (skip.block, skip.ordinal, skip.nbytes) == ("down.0", result.ordinal, result.nbytes)
    # Read for the gate, late in backward; and first of all when the block runs again.
    assert skip.phases[0] == 0 and 1 < len(skip.phases) < len(up.phases)
    assert any(0 < phase < len(up.phases) for phase in skip.phases)
    (own,) = profile.block("down.0").shared
    assert own.block == "down.0" and own.phases
    assert hf.Profile.from_json(profile.to_json()).blocks == profile.blocks


@pytest.mark.parametrize("make", [make_unet, make_rotary])
def test_where_it_fits_no_storage_is_reloaded_twice(make: Any) -> None:
    model, x = make()
    plain = step(model, x)
    profile = hf.profile(model, x, loss_fn=loss_of)
    budget = profile.activation_bytes * 7 // 10
    options: dict[str, Any] = {"forbid": ["recompute"], "activation_budget": budget}
    with hf.hyperframes(model, profile=profile, **options) as inside:
        for _ in range(2):
            assert same_gradients(plain, step(inside, x))
        stats = hf.stats(inside)
    puts, fetches = (sum(stats["engine"][word].values()) for word in ("puts", "fetches"))
    assert puts == fetches > 0
    assert stats["activation_peak"] <= stats["predicted_activation_peak"] <= budget


def test_what_others_read_of_a_block_that_runs_again_is_planned() -> None:
    """Its own hooks never saw it: it is saved by whoever reads it first."""

    def rule(block: str, storage: dict[str, Any]) -> str:
        return "recompute" if block.startswith("down") else "peer"

    model, x = make_unet()
    plain = step(model, x)
    profile = hf.profile(model, x, loss_fn=loss_of)
    context = hf.hyperframes(
        model, profile=profile, _backend=FakeBackend(rule), activation_budget="1GiB"
    )
    with context as inside:
        for _ in range(2):
            assert same_gradients(plain, step(inside, x))
    assert context.stats()["recomputed_blocks"] == 2 * 3
    assert context.stats()["unplanned_storages"] == 0
