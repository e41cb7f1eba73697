"""SELECTIVE chosen by the planner, forbidden, and forced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import nn

import hyperframes as hf
from cases.selective_models import Grouped, sample, stack, steps
from cases.small_gpt import DEVICE, assert_same
from hyperframes import _measure_operators
from hyperframes._backend import make_backend
from hyperframes._forced import forced_selective
from hyperframes.plan import rank_problem, read_plan


@pytest.fixture
def every_operator() -> Iterator[None]:
    with _measure_operators.every_operator():
        yield


def planned_profile(model: nn.Module) -> hf.Profile:
    """Times as on a GPU with long sequences, so that plans do not depend on this machine."""
    with _measure_operators.every_operator():
        profile = hf.profile(model, sample(), loss_fn=lambda y: y.square().mean())
    for block in profile.blocks:
        block.forward_s, block.backward_s, block.transient_bytes = 0.02, 0.04, 0
        block.selective = [s for s in block.selective if "mm" in s.op or "attention" in s.op]
        block.selective_base_s = 0.001
        for storage in block.selective:
            storage.recompute_s = 0.012 if "attention" in storage.op else 0.002
        if not block.selective:
            block.keep_reason = block.keep_reason or "by order"
    return profile


def deep() -> nn.Module:
    model = stack(Grouped)
    model.layers.extend(Grouped() for _ in range(4))
    return model.to(DEVICE)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "SIM-a-0=1GiB@host=5MB;SIM-a-1=1GiB")


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("forbid", [["peer", "host"], ["peer"]], ids=["alone", "host"])
def test_planned_peaks_are_kept_with_selective_blocks(forbid: list[str]) -> None:
    plain = steps(deep())
    profile = planned_profile(deep())
    selective_plans = 0
    for share in (0.45, 0.6, 0.75):
        budget = int(profile.activation_bytes * share)
        context = hf.hyperframes(deep(), profile=profile, activation_budget=budget, forbid=forbid)
        with context as inside:
            assert context.plan is not None
            policies = list(context.plan.policies.values())
            selective_plans += "POLICY_SELECTIVE" in policies
            text = context.explain()
            assert_same(plain, steps(inside))
        stats = context.stats()
        assert 0 < stats["activation_peak"] <= budget, (share, text)
        assert ("selective" in text) == ("POLICY_SELECTIVE" in policies)
        assert (stats["selective_served"] > 0) == ("POLICY_SELECTIVE" in policies)
        assert stats["selective_recompute_s"] <= stats["recompute_s"]
    assert selective_plans > 0


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("word", ["selective", "recompute"])
def test_what_is_forbidden_is_not_planned(word: str) -> None:
    profile = planned_profile(deep())
    budget = int(profile.activation_bytes * 0.6)
    forbid = ["peer", "host"] if word == "selective" else ["peer"]
    context = hf.hyperframes(
        deep(), profile=profile, activation_budget=budget, forbid=[*forbid, word]
    )
    with context as inside:
        assert context.plan is not None
        assert "POLICY_SELECTIVE" not in context.plan.policies.values()
        steps(inside, 1)


@pytest.mark.usefixtures("one_gpu", "every_operator")
@pytest.mark.parametrize("tier", ["keep", "peer", "host"])
def test_every_block_can_be_forced_to_be_selective(tier: str) -> None:
    plain = steps(stack(Grouped))
    model = stack(Grouped)
    profile = hf.profile(model, sample())
    backend = forced_selective(make_backend(DEVICE), tier)
    context = hf.hyperframes(model, profile=profile, activation_budget="1GiB", _backend=backend)
    with context as inside:
        assert_same(plain, steps(inside))
    stats = context.stats()
    assert stats["selective_blocks"] == 4
    assert (stats["peer_bytes"] > 0) == (tier == "peer")
    assert (stats["host_bytes"] > 0) == (tier == "host")
    assert stats["overflowed_storages"] == 0


@pytest.mark.usefixtures("every_operator")
def test_ranks_that_measured_differently_save_the_same_operators_under_one_plan() -> None:
    """The plan is made of the first one's measurements; the other found other operators worth it,
    and one block of it may not be SELECTIVE at all."""
    first, other = hf.profile(deep(), sample()), hf.profile(deep(), sample())
    other.block("layers.0").selective = other.block("layers.0").selective[1::2]
    other.block("layers.1").selective = []
    backend = forced_selective(make_backend(DEVICE), "peer")
    raw = backend.plan(rank_problem(first, rank=0, gpu=backend.gpu, budget=None,
                                    activation_budget=None), {})  # fmt: skip
    by_first, by_other = read_plan(raw, first, 0), read_plan(raw, other, 0)
    for name in ("layers.0", "layers.2"):
        known = {s.ordinal: (s.op, s.nbytes) for s in other.block(name).selective}
        chosen = {at: (c.op, c.nbytes) for at, c in by_first.selected[name].items()}
        mine = {at: (c.op, c.nbytes) for at, c in by_other.selected[name].items()}
        assert len(mine) == len(known) > 1
        assert mine == {at: chosen[at] for at in known}
    assert by_other.selected["layers.1"] == {}
