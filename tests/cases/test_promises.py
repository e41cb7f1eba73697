"""What holds whatever the program does: no trace, no silence, no wrong gradient."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch

import hyperframes as hf
from cases.fake_engine import FakeBackend
from cases.framing import framed, mixed, peer, profiled, recompute
from cases.small_gpt import (
    DEVICE,
    VOCABULARY,
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
    train,
)


def test_a_block_that_depends_on_hidden_state_is_an_error_not_a_wrong_gradient() -> None:
    model = make_gpt()
    calls = [0]
    inner = model.blocks[0].forward

    def moody(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        y = inner(*args, **kwargs)
        return y.sin() if calls[0] % 2 else y

    profile = profiled(model)
    model.blocks[0].forward = moody
    with hf.hyperframes(model, profile=profile, _backend=FakeBackend(recompute)) as inside:
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
        with pytest.raises(hf.RecomputeMismatch, match=r"blocks\.0"):
            loss.backward()
    assert "differ" in profiled(model).block("blocks.0").keep_reason


def test_training_flags_and_autocast_are_those_of_the_forward() -> None:
    plain = make_gpt(dropout=0.3)
    torch.manual_seed(5)
    loss = loss_of(plain(batch(0)[0]), batch(0)[1])
    plain.eval()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        loss.backward()
    model = make_gpt(dropout=0.3)
    context = framed(model, recompute)
    with context as inside:
        torch.manual_seed(5)
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
        model.eval()
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss.backward()
        assert not model.blocks[0].training
    assert same_gradients(gradients(plain), gradients(model))


def test_unsupported_tensor_subclasses_are_refused_by_name() -> None:
    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    model = make_gpt()
    context = framed(model, peer)
    with context as inside, contextlib.suppress(TypeError):
        x = torch.randn(64, 64).as_subclass(Wrapped).requires_grad_()
        with pytest.raises(hf.Unimplemented, match="Wrapped"):
            x.sin().sum()
        inside(batch(0)[0])


def test_frames_that_outlive_the_context_can_still_be_used(backend_name: str) -> None:
    plain = make_gpt()
    loss_of(plain(batch(0)[0]), batch(0)[1]).backward()
    model = make_gpt()
    with framed(model, mixed, backend_name) as inside:
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
    loss.backward()
    assert same_gradients(gradients(plain), gradients(model))


def test_a_lease_asked_back_is_returned_and_training_goes_on() -> None:
    plain = train(make_gpt(), 4)
    model = make_gpt()
    backend = FakeBackend(peer)
    with hf.hyperframes(model, profile=profiled(model), _backend=backend) as inside:
        first = backend.engine

        def ask_back(step: int) -> None:
            if step == 1:
                first.revocation = "lease-7"

        assert_same(plain, train(inside, 4, each_step=ask_back))
    assert first.closed
    assert sum(backend.engine.puts) == 0


def test_profiling_leaves_no_trace() -> None:
    model = make_gpt(dropout=0.2)
    loss_of(model(batch(0)[0]), batch(0)[1]).backward()
    before = gradients(model)
    state = torch.get_rng_state()
    dictionaries = {name: set(m.__dict__) for name, m in model.named_modules()}
    profile = profiled(model)
    assert same_gradients(before, gradients(model))
    assert torch.equal(state, torch.get_rng_state())
    assert dictionaries == {name: set(m.__dict__) for name, m in model.named_modules()}
    assert hf.Profile.from_json(profile.to_json()) == profile
    table = profile.summary(1e9)
    for word in ("blocks.2", "Bill of memory", "Verdict", "transfer ms"):
        assert word in table


def test_the_profile_sums_to_what_a_plain_step_holds() -> None:
    model = make_gpt(dropout=0.1)
    profile = profiled(model)
    with hf.ActivationMeter(model) as meter:
        train(model, 1)
    assert profile.activation_bytes == meter.peak_bytes


def test_warnings_stay_away_from_an_ordinary_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with framed(make_gpt(), mixed) as inside:
            train(inside)
    assert VOCABULARY == 97
