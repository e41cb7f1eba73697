"""What profiles measure of a block's second run, and what plans say of it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hyperframes as hf
from cases.fake_engine import FakeBackend
from cases.moved_rerun import (
    Chain,
    all_moved,
    moved,
    plan_of,
    session,
)
from cases.selective_models import (
    Grouped,
    sample,
    stack,
)
from cases.small_gpt import (
    DEVICE,
)
from cases.test_shared_storages import by_chance
from hyperframes import _measure_rerun, _native, _profiler
from hyperframes._engine import KEEP, PEER
from hyperframes.plan import read_plan


def test_what_waits_after_it_was_made_again_is_listed_as_made_again() -> None:
    context = session(stack(Grouped), sample(), moved)
    with context:
        plan = plan_of(context)
        line = next(x for x in context.explain().splitlines() if x.startswith("layers.0"))
        again = sum(
            decision.nbytes
            for (name, ordinal), decision in plan.decisions.items()
            if name == "layers.0" and (name, ordinal) not in plan.inputs
        )
        assert f" {_native.format_bytes(again)}  rule" in line


def test_what_other_blocks_read_waits_from_forward_on() -> None:
    """The rest of a block's storages with a tier, inputs apart, is made again first."""
    model, x = by_chance(4)
    profile = hf.profile(model, x)
    context = hf.hyperframes(model, profile=profile, _backend=FakeBackend(all_moved))
    with context:
        raw = plan_of(context).raw
    ordinals = {s.ordinal for s in profile.block("blocks.3").storages if not s.is_input}
    block = next(b for b in raw["ranks"][0]["blocks"] if b["name"] == "blocks.3")
    shared = next(
        read
        for read in profile.block("blocks.3").shared
        if read.block == "blocks.3" and read.ordinal in ordinals
    )
    for storage in block["storages"]:
        storage.update(tier="TIER_PEER", device="peer-device")
    plan = read_plan(raw, profile, 0)
    assert set(plan.rerun["blocks.3"]) == ordinals - {shared.ordinal}
    for storage in profile.block("blocks.3").storages:
        waits = storage.is_input or storage.ordinal == shared.ordinal
        assert plan.decisions["blocks.3", storage.ordinal].tier == (PEER if waits else KEEP)
    block["policy"] = "POLICY_SAVE"
    assert "blocks.3" not in read_plan(raw, profile, 0).rerun


def test_a_profile_tells_what_a_second_run_needs_and_scales_it() -> None:
    profile = hf.profile(stack(lambda: Chain()), sample())
    block = profile.block("layers.1")
    assert block.rerun_bytes == 2 * sample().nbytes
    assert (block.rerun_working_bytes > 0) == (DEVICE.type == "cuda")
    wire = block.to_wire(gradients_absent=False)
    assert wire["rerun_bytes"] == block.rerun_bytes
    assert wire.get("rerun_working_bytes", 0) == block.rerun_working_bytes
    again = hf.Profile.from_json(profile.to_json())
    assert again.block("layers.1") == block
    longer = profile.scaled((((4, *sample().shape[1:]), "float32"),))
    assert longer.block("layers.1").rerun_bytes == 2 * block.rerun_bytes


def test_measuring_the_second_run_changes_nothing_else_of_a_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Both(Grouped):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            random.random()
            return F.dropout(super().forward(x), 0.3)

    def measured() -> Any:
        torch.manual_seed(11)
        random.seed(11)
        model = stack(Both)
        state = torch.get_rng_state()
        profile = hf.profile(model, sample())
        assert torch.equal(state, torch.get_rng_state())
        return [
            (b.name, b.keep_reason, [(s.ordinal, s.nbytes, s.shape) for s in b.storages], b.shared)
            for b in profile.blocks
        ], [b.rerun_bytes for b in profile.blocks]

    original = _measure_rerun.measure_rerun

    def watched(*arguments: Any) -> None:
        before, python = torch.get_rng_state(), random.getstate()
        original(*arguments)
        assert torch.equal(before, torch.get_rng_state())
        assert random.getstate() == python

    monkeypatch.setattr(_profiler, "measure_rerun", watched)
    known, sizes = measured()
    assert sum(size > 0 for size in sizes) >= 2
    monkeypatch.setattr(_profiler, "measure_rerun", lambda *_: None)
    assert measured() == (known, [0] * len(sizes))


def test_what_never_runs_again_has_no_such_figure() -> None:
    class Counts(Grouped):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    model: Any = stack(Counts)
    profile = hf.profile(model, sample(), loss_fn=lambda y: y.square().mean())
    assert profile.block("layers.0").keep_reason == "updates a buffer"
    assert [profile.block(name).rerun_bytes for name in ("layers.0", "loss")] == [0, 0]
    assert float(model.layers[0].calls) == 0.0


def test_a_second_run_that_cannot_be_measured_says_why() -> None:
    class Slope(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(sample().shape[-1], sample().shape[-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x).square()
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return y + slope

    block = hf.profile(stack(Slope), sample()).block("layers.1")
    assert block.rerun_bytes == 0 and not block.keep_reason
    assert "differentiates inside its forward" in block.rerun_reason


class _TooLarge(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.11 GiB.")


def test_a_profile_that_runs_out_of_memory_says_how_to_get_one() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), _TooLarge())
    with pytest.raises(hf.ResourceExhausted, match=r"Profile a shorter input.*Tried to allocate"):
        hf.profile(model, torch.randn(2, 8))
