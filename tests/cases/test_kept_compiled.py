"""Case T22: compiled blocks that must not run again are kept, and the profile says why."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hyperframes as hf
from cases.framing import profiled
from cases.small_gpt import batch, loss_of, make_gpt
from cases.test_compiled_blocks import WAYS
from cases.test_recomputed_compiled import ALL, Watching, again, compiled, ran_again


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def reason(**compile_options: Any) -> str:
    model = make_gpt()
    for block in model.blocks:
        block.compile(**compile_options)
    reasons = {b.keep_reason for b in profiled(model).blocks if b.name.startswith("blocks")}
    assert len(reasons) == 1
    return reasons.pop()


def test_t22_cuda_graphs_keep_a_block_from_running_again() -> None:
    assert "CUDA graphs" in reason(mode="reduce-overhead")


@pytest.mark.parametrize("name", list(WAYS))
def test_t22_hooks_that_are_compiled_with_a_block_run_once(name: str) -> None:
    ids, targets = batch(0)
    seen: list[str] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        seen.append("ran")

    def partly(block: nn.Module, backend: Any) -> Any:
        return WAYS[name](block, backend, fullgraph=False)

    model = compiled(Watching(), partly)
    inner = getattr(model.blocks[1], "_orig_mod", model.blocks[1])
    hook = inner.register_forward_hook(note)
    assert "hooks of its own" in profiled(model).block("blocks.1").keep_reason
    hook.remove()
    context = again(model)
    with context as inside:
        inner.register_forward_hook(note)
        seen.clear()
        loss_of(inside(ids), targets).backward()
    assert seen == ["ran"]
    assert ran_again(context) == ALL - {"blocks.1"}


def test_t22_a_backend_that_gives_every_run_the_same_memory_keeps_it() -> None:
    def overwriting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        inner = Watching()(graph, inputs)
        outputs: list[torch.Tensor] = []

        def run(*args: Any) -> Any:
            made = inner(*args)
            with torch.no_grad():
                for old in outputs:
                    old.detach().fill_(7)
            outputs[:] = [leaf for leaf in made if isinstance(leaf, torch.Tensor)]
            return made

        return run

    assert reason(backend=overwriting) == "two runs from one random state differ"


def test_t22_compiled_code_that_counts_its_runs_keeps_it() -> None:
    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        inner, count = Watching()(graph, inputs), 0

        def run(*args: Any) -> Any:
            nonlocal count
            count += 1
            return [leaf + count for leaf in inner(*args)]

        return run

    assert reason(backend=counting) == "two runs from one random state differ"


def test_t22_a_backend_without_ahead_of_time_autograd_keeps_it() -> None:
    assert "cannot be told from another version" in reason(backend="eager")


class _Draws(nn.Module):
    """Multiplies, and saves a number that differs between runs, as attention saves memory that it
    never wrote to. ``reads``: its backward depends on that number."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 2.0))
        self.multiply = _operator_that_reads if reads else _operator_that_does_not

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.multiply(x, self.weight)[0]
        return torch.sin(made)


_runs = itertools.count(1)


def _operator(name: str, reads: bool) -> Any:
    @torch.library.custom_op(f"hyperframes_tests::{name}", mutates_args=())
    def multiply(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * weight, torch.tensor([next(_runs), 0])

    @multiply.register_fake
    def _(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), torch.empty(2, dtype=torch.int64)

    @torch.library.custom_op(f"hyperframes_tests::{name}_backward", mutates_args=())
    def backward(
        gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scale = state[0] if reads else 1
        return gradient * weight * scale, (gradient * x).sum(0)

    @backward.register_fake
    def _(
        gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), torch.empty_like(weight)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output[1])

    multiply.register_autograd(
        lambda ctx, gradient, _: backward(gradient, *ctx.saved_tensors), setup_context=keep
    )
    return multiply


_operator_that_reads = _operator("multiply_by_state", reads=True)
_operator_that_does_not = _operator("multiply", reads=False)


@pytest.mark.parametrize(
    ("reads", "why"), [(False, ""), (True, "two runs from one random state differ")]
)
def test_t22_a_state_that_no_backward_reads_may_differ_between_two_runs(
    reads: bool, why: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), _Draws(reads), nn.Linear(8, 8))
    model[1].compile(backend="aot_eager")
    profile = hf.profile(model, torch.randn(4, 8, requires_grad=True), blocks=["1"])
    assert profile.block("1").keep_reason == why
