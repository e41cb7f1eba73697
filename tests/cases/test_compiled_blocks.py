"""Case T22: torch.compile on each block, on a part with many of them, on the whole model.

The compiled code of every case is counted: a case in which PyTorch quietly went back to eager would
be equal for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

import hyperframes as hf
from cases.backends import BACKENDS, default_backend
from cases.framing import framed, mixed, peer, profiled
from cases.small_gpt import GPT, assert_same, batch, loss_of, make_gpt, train

# As inductor does it, forward and backward are traced ahead of time, decomposed, and cut where
# least has to be saved; only the generated C++ is missing, which takes minutes to make.
AHEAD_OF_TIME = "aot_eager_decomp_partition"


class Counting:
    """A torch.compile backend that counts graphs, and calls of the code that was made of them."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        compiled = lookup_backend(AHEAD_OF_TIME)(graph, inputs)

        def run(*args: Any) -> Any:
            self.calls += 1
            return compiled(*args)

        return run


def compiled_call(block: nn.Module, backend: Any, fullgraph: bool = True) -> nn.Module:
    block.compile(backend=backend, fullgraph=fullgraph)
    return block


def optimized_module(block: nn.Module, backend: Any, fullgraph: bool = True) -> Any:
    return torch.compile(block, backend=backend, fullgraph=fullgraph)


WAYS = {"compile()": compiled_call, "OptimizedModule": optimized_module}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> Any:
    torch._dynamo.reset()
    return WAYS[request.param]


def compiled_gpt(way: Any, **options: Any) -> tuple[GPT, Counting]:
    model, counting = make_gpt(**options), Counting()
    model.blocks = nn.ModuleList(way(block, counting) for block in model.blocks)
    return model, counting


def test_t22_compiled_blocks_are_bit_equal_and_run_compiled(way: Any, backend_name: str) -> None:
    model, alone = compiled_gpt(way)
    plain = train(model, 4)
    torch._dynamo.reset()
    model, counting = compiled_gpt(way)
    backend = BACKENDS[backend_name](mixed)
    profile = profiled(model)
    assert not profile.block("blocks.1").keep_reason
    made, called = counting.graphs, counting.calls
    context = hf.hyperframes(model, profile=profile, _backend=backend, activation_budget="1GiB")
    with context as inside:
        assert_same(plain, train(inside, 4))
    # One graph for the three blocks, made while profiling, and no other for all steps; one of them
    # runs again in each.
    assert alone.graphs == 1 and alone.calls == 12
    assert counting.graphs == made and counting.calls - called == 12 + 4
    stats = context.stats()
    again = [name for name in stats["recompute_s_by_block"] if name.startswith("blocks")]
    assert again == ["blocks.1"]
    assert stats["unplanned_storages"] == 0
    assert stats["engine"]["live_storages"] == 0


def test_t22_what_a_compiled_block_saves_is_moved(way: Any) -> None:
    model, _ = compiled_gpt(way)
    backend = default_backend(peer)
    profile = profiled(model)
    saved = [s for s in profile.block("blocks.1").storages if not s.unmovable_reason]
    assert saved
    context = hf.hyperframes(model, profile=profile, _backend=backend, activation_budget="1GiB")
    with context as inside:
        train(inside, 1)
        stats = context.stats()
    assert stats["peer_bytes"] >= 3 * sum(s.nbytes for s in saved if not s.is_input)


def test_t22_evaluation_and_new_lengths_run_compiled(way: Any) -> None:
    lengths = [64, 48, 64, 48]

    def evaluate(model: nn.Module) -> Callable[[int], None]:
        def run(step: int) -> None:
            with torch.no_grad():
                model(batch(50 + step)[0])

        return run

    model, alone = compiled_gpt(way)
    plain = train(model, 4, lengths=lambda step: lengths[step], each_step=evaluate(model))
    torch._dynamo.reset()
    model, counting = compiled_gpt(way)
    with framed(model, peer) as inside:
        seen = train(inside, 4, lengths=lambda step: lengths[step], each_step=evaluate(model))
    assert_same(plain, seen)
    assert counting.graphs == alone.graphs


def test_t22_an_exception_in_a_compiled_block_leaves_the_next_step_right(way: Any) -> None:
    model, _ = compiled_gpt(way)
    plain = train(model)
    torch._dynamo.reset()
    model, _ = compiled_gpt(way)
    with framed(model, peer) as inside:
        with pytest.raises(RuntimeError):
            model.blocks[1](torch.zeros(2, 64, 63), mask=model.mask)
        assert_same(plain, train(inside))


def test_t22_leaving_puts_back_what_was_compiled(way: Any) -> None:
    model, counting = compiled_gpt(way)
    before = [dict(module.__dict__) for module in model.modules()]
    with framed(model, peer) as inside:
        train(inside, 1)
    after = [dict(module.__dict__) for module in model.modules()]
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        for name in ("forward", "_compiled_call_impl"):
            assert old.get(name) is new.get(name)
    called = counting.calls
    train(model, 1)
    assert counting.calls == called + 3


def whole_by_call(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def whole_by_wrapper(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("whole", [whole_by_call, whole_by_wrapper])
def test_t22_a_wholly_compiled_model_is_refused_by_name(whole: Any) -> None:
    model = whole(make_gpt())
    for use in (hf.hyperframes, lambda m: hf.profile(m, batch(0)[0])):
        with pytest.raises(hf.FailedPrecondition, match=r"compile each block"):
            use(model)


def test_t22_a_part_that_is_compiled_with_all_its_layers_is_refused_by_name() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = make_gpt()

        def forward(self, ids: torch.Tensor) -> Any:
            return self.decoder(ids)

    model = Wrapper()
    model.decoder.compile(backend="eager")
    with pytest.raises(hf.FailedPrecondition, match=r"decoder is compiled with all its layers"):
        hf.hyperframes(model)


@pytest.mark.parametrize("whole", [whole_by_call, whole_by_wrapper])
def test_t22_compiling_the_model_inside_the_context_is_refused_by_name(whole: Any) -> None:
    """As Trainer(torch_compile=True) and whoever compiles the whole step do it."""
    torch._dynamo.reset()
    model = make_gpt()
    with framed(model, peer):
        compiled = whole(model)
        with pytest.raises(hf.FailedPrecondition, match=r"compile each block"):
            compiled(batch(0)[0])


def test_t22_a_compiled_step_is_refused_by_name() -> None:
    torch._dynamo.reset()
    model = make_gpt()
    ids, targets = batch(0)

    @torch.compile(backend="eager")
    def step() -> torch.Tensor:
        return loss_of(model(ids), targets)

    with (
        framed(model, peer),
        pytest.raises(hf.FailedPrecondition, match=r"The model is called from compiled"),
    ):
        step()


@pytest.mark.parametrize("name", list(WAYS))
def test_t22_compiling_a_block_inside_the_context_is_refused_by_name(name: str) -> None:
    torch._dynamo.reset()
    model = make_gpt()
    with framed(model, peer) as inside:
        model.blocks[1] = WAYS[name](model.blocks[1], "eager", fullgraph=False)
        with pytest.raises(hf.FailedPrecondition, match=r"blocks\.1 is called from compiled code"):
            inside(batch(0)[0])
