"""A trainer moves the model after the context was opened, as Lightning's does in fit()."""

from __future__ import annotations

import pytest
import torch

import hyperframes as hf
from cases.backends import default_backend
from cases.framing import mixed, peer, profiled
from cases.small_gpt import DEVICE, GPT, assert_same, batch, make_gpt, train


def empty_gpt() -> GPT:
    with torch.device("meta"):
        return GPT(tied=False)


def fill(model: GPT) -> None:
    model.to_empty(device=DEVICE)
    model.load_state_dict(make_gpt(tied=False).state_dict(), strict=False)
    model.get_buffer("mask").copy_(make_gpt().get_buffer("mask"))


def test_the_model_may_get_its_device_after_the_context_was_opened() -> None:
    plain = train(make_gpt(tied=False))
    model = empty_gpt()
    context = hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(mixed))
    with context as inside:
        fill(model)
        assert_same(plain, train(inside))
    assert context.stats()["engine"]["bytes_out"]["peer"] > 0
    assert context.stats()["recomputed_blocks"] > 0


def test_a_model_moved_away_from_its_plan_is_refused_by_name() -> None:
    model = make_gpt()
    profile = profiled(model)
    with hf.hyperframes(
        model, profile=profile, activation_budget="1GiB", _backend=default_backend(peer)
    ) as inside:
        model.to("meta")
        with pytest.raises(hf.FailedPrecondition, match=f"was on {DEVICE.type}.* is on meta now"):
            inside(batch(0)[0].to("meta"))
