"""Case T22: numbers that an operator draws by itself, or leaves as its memory was, are kept.

Attention without dropout saves a random state that it never wrote. A block that runs again would
save another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import hyperframes as hf
from cases.backends import default_backend
from cases.framing import recompute


class _State:
    runs = itertools.count(1)
    dtype = torch.int64


@torch.library.custom_op("hyperframes_tests::multiply_with_state", mutates_args=())
def _multiply(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * weight, torch.tensor([next(_State.runs), 0], dtype=_State.dtype)


@_multiply.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty(2, dtype=_State.dtype)


@torch.library.custom_op("hyperframes_tests::multiply_with_state_backward", mutates_args=())
def _backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return gradient * weight * state[0], (gradient * x).sum(0)


@_backward.register_fake
def _(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, output[1])


_multiply.register_autograd(
    lambda ctx, gradient, _: _backward(gradient, *ctx.saved_tensors), setup_context=_keep
)


class _Drawing(nn.Module):
    """Its gradients depend on a number that differs between its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = _multiply(x, self.weight)[0]
        return torch.sin(made)


def _model(compiled: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), _Drawing(), nn.Linear(8, 8))
    if compiled:
        model[1].compile(backend="aot_eager")
    return model


def _gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    _State.runs = itertools.count(5)
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("compiled", [False, True])
def test_t22_a_block_that_runs_again_has_the_states_of_its_first_run(compiled: bool) -> None:
    x = torch.randn(4, 8)
    plain = _gradients(_model(compiled), x)
    torch._dynamo.reset()
    model = _model(compiled)
    profile = hf.profile(model, x, blocks=["1"])
    assert not profile.block("1").keep_reason
    context = hf.hyperframes(
        model, profile=profile, _backend=default_backend(recompute), activation_budget="1GiB"
    )
    with context as inside:
        again = _gradients(inside, x)
    assert all(map(torch.equal, plain, again)) and len(plain) == len(again) == 5
    assert "1" in context.stats()["recompute_s_by_block"]


class _Views(torch.autograd.Function):
    """Saves a few numbers in one way or another; backward notes how it gets them."""

    seen: ClassVar[list[tuple[list[int], tuple[int, ...]]]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.save_for_backward(_WAYS[name](torch.arange(next(_State.runs), 2000)))
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (state,) = ctx.saved_tensors
        _Views.seen.append((state.tolist(), state.stride()))
        return gradients[0] * 2, None


_WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in_a_large_storage": lambda numbers: numbers[100:104],
    "every_second": lambda numbers: numbers[:8:2],
    "one_for_all": lambda numbers: numbers[3].expand(4),
    "transposed": lambda numbers: numbers[:6].view(2, 3).t(),
}


@pytest.mark.parametrize("way", list(_WAYS))
def test_t22_states_come_back_with_their_strides(way: str) -> None:
    class Block(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _Views.apply(torch.sin(x), way)

    model = nn.Sequential(nn.Linear(8, 8), Block(), nn.Linear(8, 8))
    x = torch.randn(4, 8)
    profile = hf.profile(model, x, blocks=["1"])
    context = hf.hyperframes(
        model, profile=profile, _backend=default_backend(recompute), activation_budget="1GiB"
    )
    _Views.seen.clear()
    with context as inside:
        _gradients(inside, x)
    state = _WAYS[way](torch.arange(5, 2000))
    assert _Views.seen == [(state.tolist(), state.stride())]
    assert "1" in context.stats()["recompute_s_by_block"]


def test_t22_other_numbers_that_differ_keep_a_compiled_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_State, "dtype", torch.float32)
    profile = hf.profile(_model(True), torch.randn(4, 8), blocks=["1"])
    assert "differ: float32[2] that it saves" in profile.block("1").keep_reason


def test_t22_what_a_trial_saves_is_outside_no_block_of_a_step() -> None:
    x = torch.randn(4, 8)
    eager, compiled = (hf.profile(_model(kind), x, blocks=["1"]) for kind in (False, True))
    for block, other in zip(eager.blocks, compiled.blocks, strict=True):
        assert block.name == other.name
        if block.name != "1":
            assert [s.nbytes for s in block.storages] == [s.nbytes for s in other.storages]
