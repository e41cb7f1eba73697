"""Case T22: blocks under torch.compile run again in backward, by the very code that ran in forward.

What was compiled, and how often it was called, is counted: a block that Dynamo had given up would
be equal for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import hyperframes as hf
from cases.backends import BACKENDS, default_backend
from cases.framing import profiled, recompute
from cases.small_gpt import (
    GPT,
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
    train,
)
from cases.test_compiled_blocks import AHEAD_OF_TIME, WAYS, compiled_call
from cases.test_compiled_views import Unkind

STEPS, BLOCKS = 5, 3


class Watching:
    """A torch.compile backend that counts its graphs and the calls of what it made of them."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        compiled = lookup_backend(AHEAD_OF_TIME)(graph, inputs)

        def run(*args: Any) -> Any:
            assert not _get_current_dispatch_mode_stack()
            self.calls += 1
            return compiled(*args)

        return run


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(backend: Any, way: Any = compiled_call, **options: Any) -> GPT:
    model = make_gpt(**options)
    model.blocks = nn.ModuleList(way(block, backend) for block in model.blocks)
    return model


def anew() -> None:
    torch._dynamo.reset()
    counters.clear()


def again(model: nn.Module, backend: Any = None, **options: Any) -> Any:
    """A context in which every block that may run again does."""
    profile = profiled(model, **options)
    assert not any(b.keep_reason for b in profile.blocks if b.name.startswith("blocks"))
    return hf.hyperframes(
        model, profile=profile, _backend=backend or default_backend(recompute),
        activation_budget="1GiB",
    )  # fmt: skip


def ran_again(context: Any) -> set[str]:
    return {name for name in context.stats()["recompute_s_by_block"] if name.startswith("blocks")}


ALL = {"blocks.0", "blocks.1", "blocks.2"}


def frames() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    return dict(counters["frames"]), dict(counters["stats"]), dict(counters["graph_break"])


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("name", list(WAYS))
def test_t22_recomputed_compiled_blocks_are_bit_equal_and_compile_nothing_anew(
    name: str, autocast: Any, backend_name: str
) -> None:
    alone, watching = Watching(), Watching()
    plain = train(compiled(alone, WAYS[name], dropout=0.1), STEPS, autocast=autocast)
    of_plain = frames()
    anew()
    model = compiled(watching, WAYS[name], dropout=0.1)
    options = {"dtype": autocast} if autocast is not None else {}
    context = again(model, BACKENDS[backend_name](recompute), **options)
    assert frames() == of_plain
    called, seen = watching.calls, []
    with context as inside:
        training = train(
            inside, STEPS, autocast=autocast, each_step=lambda step: seen.append(frames())
        )
    assert_same(plain, training)
    assert seen == [of_plain] * STEPS
    assert watching.graphs == alone.graphs == 1
    assert alone.calls == BLOCKS * STEPS and watching.calls - called == 2 * alone.calls
    assert ran_again(context) == ALL
    assert context.stats()["unplanned_storages"] == 0
    assert context.stats()["engine"]["live_storages"] == 0


def test_t22_what_inductor_makes_runs_again_with_the_same_bits() -> None:
    """Its own random numbers, its own donated buffers, C++ and all."""
    plain = train(compiled("inductor", dropout=0.1), STEPS, autocast=torch.bfloat16)
    of_plain = frames()
    anew()
    context = again(compiled("inductor", dropout=0.1), dtype=torch.bfloat16)
    with context as inside:
        assert_same(plain, train(inside, STEPS, autocast=torch.bfloat16))
    assert frames() == of_plain
    assert ran_again(context) == ALL


def test_t22_a_backward_that_overwrites_its_donated_buffers_changes_nothing() -> None:
    plain = train(compiled(Unkind()))
    anew()
    unkind = Unkind()
    context = again(compiled(unkind))
    before = unkind.overwritten
    with context as inside:
        assert_same(plain, train(inside))
    assert unkind.overwritten > before
    assert ran_again(context) == ALL


def test_t22_what_was_handed_out_is_never_handed_out_again() -> None:
    """Somebody read a node's saved tensors before its backward, which will overwrite them."""
    ids, targets = batch(0)
    held: list[torch.Tensor] = []

    def step(model: Any, peek: bool) -> list[Any]:
        model.zero_grad(set_to_none=True)
        seen: list[Any] = []
        hook = model.blocks[1].register_forward_hook(lambda m, args, out: seen.append(out.grad_fn))
        loss = loss_of(model(ids), targets)
        hook.remove()
        node = seen.pop()
        if peek:
            node.register_prehook(lambda grads: held.extend(node.saved_tensors))
        loss.backward()
        return gradients(model)

    # Of an OptimizedModule, hooks are outside of what is compiled.
    plain = step(compiled(Unkind(), WAYS["OptimizedModule"]), False)
    anew()
    context = again(compiled(Unkind(), WAYS["OptimizedModule"]))
    with context as inside:
        once = step(inside, False)
        runs = context.stats()["recomputed_blocks"]
        seen = step(inside, True)
    assert same_gradients(plain, once) and same_gradients(plain, seen)
    assert context.stats()["recomputed_blocks"] == 2 * runs + 1
    assert held and all(tensor.isfinite().all() for tensor in held if tensor.is_floating_point())


def test_t22_a_retained_backward_runs_compiled_blocks_once_more() -> None:
    ids, targets = batch(0)

    def twice(model: Any) -> list[Any]:
        loss = loss_of(model(ids), targets)
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(model)

    with torch._functorch.config.patch(donated_buffer=False):  # Else PyTorch refuses to retain.
        plain = twice(compiled(Unkind()))
        anew()
        context = again(compiled(Unkind()))
        with context as inside:
            assert same_gradients(plain, twice(inside))
    assert context.stats()["recomputed_blocks"] >= 2 * BLOCKS


@pytest.mark.parametrize("in_flight", [1, 2])
def test_t22_micro_batches_of_compiled_blocks_add_up(in_flight: int) -> None:
    def accumulate(model: Any) -> list[Any]:
        torch.manual_seed(3)
        waiting = []
        for index in range(4):
            ids, targets = batch(index)
            waiting.append(loss_of(model(ids), targets))
            if len(waiting) == in_flight:
                for loss in waiting:
                    loss.backward()
                waiting.clear()
        return gradients(model)

    plain = accumulate(compiled(Watching(), dropout=0.1))
    anew()
    context = again(compiled(Watching(), dropout=0.1))
    with context as inside:
        assert same_gradients(plain, accumulate(inside))
    assert ran_again(context) == ALL


class Twice(GPT):
    """Calls its second block twice."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids)
        for index in (0, 1, 1, 2):
            x = self.blocks[index](x, mask=self.mask)
        return self.head(self.norm(x))


def test_t22_a_compiled_block_that_is_called_twice_runs_again_twice() -> None:
    def make() -> GPT:
        model = compiled(Unkind(), dropout=0.1)
        model.__class__ = Twice
        return model

    plain = train(make())
    anew()
    context = again(make())
    with context as inside:
        assert_same(plain, train(inside))
    assert ran_again(context) == {*ALL, "blocks.1#2"}


def test_t22_exceptions_in_forward_and_backward_leave_the_next_step_right() -> None:
    plain = train(compiled(Watching()))
    anew()
    model = compiled(Watching())
    ids, targets = batch(0)

    def fail(grad: torch.Tensor) -> None:
        raise ZeroDivisionError("in the middle of backward")

    context = again(model)
    weight = dict(model.named_parameters())["blocks.1.qkv.weight"]
    with context as inside:
        with pytest.raises(RuntimeError):
            model.blocks[1](torch.zeros(2, 64, 63), mask=model.mask)
        loss = loss_of(inside(ids), targets)
        hook = weight.register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        hook.remove()
        del loss
        assert_same(plain, train(inside))
    assert context.stats()["engine"]["live_storages"] == 0


def test_t22_new_lengths_run_again_by_the_code_that_was_compiled_for_them() -> None:
    lengths = [64, 48, 64, 48, 32]
    alone, watching = Watching(), Watching()
    plain = train(compiled(alone, dropout=0.1), STEPS, lengths=lambda step: lengths[step])
    anew()
    context = again(compiled(watching, dropout=0.1))
    with context as inside:
        assert_same(plain, train(inside, STEPS, lengths=lambda step: lengths[step]))
    assert watching.graphs == alone.graphs > 1
    assert ran_again(context) == ALL


def test_t22_other_compiled_code_than_in_forward_is_refused_by_name() -> None:
    """The second length makes a version for any length, which fits the first one's backward."""
    model, (first, second) = compiled(Watching()), (batch(0, 48), batch(1, 32))
    profile = hf.profile(model, first[0], loss_fn=lambda out: loss_of(out, first[1]))
    with hf.hyperframes(
        model, profile=profile, _backend=default_backend(recompute), activation_budget="1GiB"
    ) as inside:
        waiting = loss_of(inside(first[0]), first[1])
        loss_of(inside(second[0]), second[1]).backward()
        with pytest.raises(hf.RecomputeMismatch, match=r"blocks\.2 ran other compiled code"):
            waiting.backward()


def test_t22_flags_and_evaluations_between_forward_and_backward_change_no_code() -> None:
    ids, targets = batch(0)

    def step(model: Any) -> list[Any]:
        torch.manual_seed(3)
        loss = loss_of(model(ids), targets)
        model.eval()
        with torch.no_grad():
            model(ids)
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)
        try:
            loss.backward()
            assert torch.get_num_threads() == threads + 1
        finally:
            torch.set_num_threads(threads)
        assert not model.blocks[1].training
        model.train()
        return gradients(model)

    alone, watching = Watching(), Watching()
    plain = step(compiled(alone, dropout=0.1))
    anew()
    context = again(compiled(watching, dropout=0.1))
    with context as inside:
        assert same_gradients(plain, step(inside))
    assert watching.graphs == alone.graphs
    assert ran_again(context) == ALL


class Pair(nn.Module):
    """Is given one tensor twice, and a weight of somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(64, 64)

    def forward(self, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return a + torch.sigmoid(self.down(b)) * torch.tanh(a @ weight)


class Pairs(nn.Module):
    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.blocks = nn.ModuleList(compiled_call(Pair(), backend) for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, x, self.weight)
        return x


def run_pairs(model: Any, x: torch.Tensor) -> list[Any]:
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    return gradients(model)


def pairs(backend: Any) -> Pairs:
    torch.manual_seed(0)
    return Pairs(backend)


def test_t22_a_tensor_given_twice_and_a_weight_are_so_again() -> None:
    watching, x = Watching(), torch.randn(32, 64)
    plain = run_pairs(pairs(Watching()), x)
    anew()
    model = pairs(watching)
    run_pairs(model, x)  # Compiled for weights; a profile measures with plain tensors.
    profile = hf.profile(model, x, loss_fn=lambda out: out.square().mean())
    made = watching.graphs
    context = hf.hyperframes(
        model, profile=profile, _backend=default_backend(recompute), activation_budget="1GiB"
    )
    with context as inside:
        for _ in range(3):
            assert same_gradients(plain, run_pairs(inside, x))
    assert watching.graphs == made
    assert ran_again(context) == ALL


class Pieces(nn.Module):
    """Dynamo compiles it in pieces: what runs between them saves tensors too."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.up(x))
        y = y.masked_select(y > 0.2).mean() + y
        return x + torch.tanh(self.down(y))


class InPieces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            compiled_call(Pieces(), Watching(), fullgraph=False) for _ in range(BLOCKS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_t22_a_block_that_is_compiled_in_pieces_runs_again_as_a_whole() -> None:
    x = torch.randn(32, 64)
    plain = run_pairs(InPieces(), x)
    anew()
    model = InPieces()
    profile = hf.profile(model, x, loss_fn=lambda out: out.square().mean())
    context = hf.hyperframes(
        model, profile=profile, _backend=default_backend(recompute), activation_budget="1GiB"
    )
    with context as inside:
        assert same_gradients(plain, run_pairs(inside, x))
        seen = frames()
        for _ in range(3):
            assert same_gradients(plain, run_pairs(inside, x))
    assert frames() == seen
    assert ran_again(context) == ALL


# ---- The planner's own plans ----


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_t22_a_budget_that_compiled_blocks_meet_by_running_again_holds(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "1 x 64MiB")
    plain = train(compiled(Unkind(), layers=6), 3)
    anew()
    model = compiled(Unkind(), layers=6)
    profile = profiled(model)
    options: dict[str, Any] = {"profile": profile, "forbid": ["peer", "host", "selective"]}
    with pytest.raises(hf.ResourceExhausted) as refused:
        hf.hyperframes(model, activation_budget=1, **options).__enter__()
    words = str(refused.value).split("the smallest activation_budget that works is")[1]
    least = int(words.split("(")[1].split(" bytes")[0])
    assert least < profile.activation_bytes
    budget = least + int(share * (profile.activation_bytes - least))
    context = hf.hyperframes(model, activation_budget=budget, **options)
    with context as inside:
        assert_same(plain, train(inside, 3))
    stats = context.stats()
    assert [name for name in stats["recompute_s_by_block"] if name.startswith("blocks")]
    assert stats["activation_peak"] <= stats["predicted_activation_peak"] <= budget
