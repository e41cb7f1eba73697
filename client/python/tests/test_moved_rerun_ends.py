"""What a block made again and put away ends with its backward, and costs no more than said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases.fake_engine import FakeBackend
from cases.framing import framed
from cases.moved_rerun import (
    BOTH,
    NOTHING,
    Chain,
    all_moved,
    inputs_of,
    left_behind,
    loss_on,
    moved,
    plan_of,
    session,
)
from cases.selective_models import (
    Custom,
    Grouped,
    sample,
    stack,
    steps,
)
from cases.small_gpt import (
    DEVICE,
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
)
from hyperframes import _replays


def test_in_forward_nothing_of_it_is_held() -> None:
    backend = FakeBackend(all_moved)
    context = session(stack(Grouped), sample(), all_moved, backend)
    with context as inside:
        loss = loss_on(inside)
        assert len(backend.engine.slots) == inputs_of(context)
        before = context.meter.current_bytes + context._store.moved_bytes()
        loss.backward()
        assert len(context._store.live) == 0
    plain = session(stack(Grouped), sample(), lambda *_: "recompute")
    with plain as inside:
        loss = loss_on(inside)
        assert plain.meter.current_bytes + plain._store.moved_bytes() == before


def test_without_such_storages_a_block_runs_again_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replays, "MovedFrame", None)
    context = session(stack(Grouped), sample(), lambda *_: "recompute")
    with context as inside:
        steps(inside)
        assert not context.plan.rerun
    assert context.stats()["recomputed_blocks"] > 0
    assert context.stats()["rerun_moved_storages"] == 0


@pytest.mark.parametrize("backend_name", BOTH)
def test_bytes_are_flat_over_twenty_steps_and_all_slots_come_back(backend_name: str) -> None:
    context = session(stack(Grouped), sample(), moved, backend_name)
    peaks = []
    with context as inside:
        for _ in range(20):
            context.meter.reset_peak()
            loss = loss_on(inside)
            loss.backward()
            del loss
            assert left_behind(context) == NOTHING
            peaks.append(context.meter.peak_bytes)
            assert context._store.engine.stats()["live_storages"] == 0
    if backend_name == "unkind":  # Its copies end at fixed moments.
        assert len(set(peaks[2:])) == 1
    assert context.stats()["engine"].get("stash_bytes", 0) == 0


class Casts(Chain):
    """Under an autocast of its own, whose cache would hold all casts to the end of the run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return super().forward(x).float()


@pytest.mark.parametrize("make", [Chain, Casts])
def test_the_peak_is_what_runs_again_and_the_windows(make: Any) -> None:
    def peak_of(rule: Any) -> tuple[int, Any]:
        backend = FakeBackend(rule, stash_limit=0, prefetch_limit=0)
        context = session(stack(make), sample(), rule, backend)
        with context as inside:
            loss_on(inside).backward()
            loss = loss_on(inside)
            kept = context.meter.reset_peak() and context.meter.current_bytes
            loss.backward()
            return context.meter.peak_bytes - kept, context._profile.block("layers.1")

    most, block = peak_of(all_moved)
    one = sample().nbytes // (2 if make is Casts else 1)
    own = sum(s.nbytes for s in block.storages if not s.is_input)
    assert own >= 16 * one
    # One tanh is there while the next one is made of it, and a cast while its product is.
    assert block.rerun_bytes == 2 * one
    window = 2 * one  # A reload in use, and one ahead of it.
    given = sample().nbytes
    assert most <= block.rerun_bytes + given + window
    assert peak_of(lambda *_: "recompute")[0] > own - 2 * one


@pytest.mark.parametrize("backend_name", BOTH)
def test_a_retained_graph_runs_again_and_puts_away_again(backend_name: str) -> None:
    def run(model: nn.Module) -> list[Any]:
        loss = loss_on(model)
        loss.backward(retain_graph=True)
        first = gradients(model)
        loss.backward(retain_graph=True)
        loss.backward()
        return [*first, *gradients(model)]

    plain = run(stack(Grouped))
    context = session(stack(Grouped), sample(), moved, backend_name)
    with context as inside:
        assert same_gradients(plain, run(inside))
        planned = sum(len(found) for found in plan_of(context).rerun.values())
        assert context.stats()["rerun_moved_storages"] == 3 * planned
        assert left_behind(context) == NOTHING


def test_between_two_backwards_of_a_retained_graph_only_inputs_wait() -> None:
    context = session(stack(Grouped), sample())
    with context as inside:
        loss = loss_on(inside)
        loss.backward(retain_graph=True)
        assert len(context._store.live) == inputs_of(context)
        assert not context._store.stash
        loss.backward()
        assert left_behind(context)[:3] == NOTHING[:3]


@pytest.mark.parametrize("backend_name", BOTH)
def test_a_double_backward_is_right(backend_name: str) -> None:
    def run(model: nn.Module) -> list[Any]:
        x = sample().requires_grad_()
        loss = model(x).square().mean()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + grad.square().sum()).backward()
        return [grad.detach(), *gradients(model)]

    plain = run(stack(Chain))
    context = session(stack(Chain), sample(), moved, backend_name)
    with context as inside:
        assert same_gradients(plain, run(inside))
    assert context.stats()["rerun_moved_storages"] > 0
    assert not context.stats()["engine"]["live_storages"]


@pytest.mark.parametrize("backend_name", BOTH)
def test_gradients_of_a_part_of_the_graph_leave_nothing_behind(backend_name: str) -> None:
    def run(model: Any, check: Callable[[], None]) -> list[Any]:
        loss = loss_on(model)
        wanted = [model.layers[1].down.weight, model.layers[0].out.weight]
        found = list(torch.autograd.grad(loss, wanted[:1], retain_graph=True))
        check()
        found += torch.autograd.grad(loss, wanted, retain_graph=True)
        check()
        found += torch.autograd.grad(loss, list(model.parameters()))
        return [x.clone() for x in found]

    plain = run(stack(Grouped), lambda: None)
    context = session(stack(Grouped), sample(), moved, backend_name)
    with context as inside:

        def check() -> None:
            assert len(context._store.live) == inputs_of(context)
            assert not context._store.stash

        assert same_gradients(plain, run(inside, check))
        assert left_behind(context) == NOTHING


@pytest.mark.parametrize("backend_name", BOTH)
def test_accumulation_and_several_micro_batches_in_flight(backend_name: str) -> None:
    def run(model: nn.Module) -> list[Any]:
        torch.manual_seed(4)
        for step in range(2):
            loss_of(model(batch(step)[0]), batch(step)[1]).backward()
        losses = [loss_of(model(batch(i)[0]), batch(i)[1]) for i in range(3)]
        losses[1].backward()
        (losses[0] + losses[2]).backward()
        return [torch.stack(losses).detach(), *gradients(model)]

    plain = run(make_gpt(dropout=0.1))
    context = framed(make_gpt(dropout=0.1), moved, backend_name)
    with context as inside:
        assert same_gradients(plain, run(inside))
        assert left_behind(context) == NOTHING
    assert context.stats()["rerun_moved_storages"] > 5 * 15


class ReadsOften(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        for _ in range(3):
            once = ctx.saved_tensors[0].cos()
        return grads[0] * once * ctx.saved_tensors[0]


def most_slots(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """That were taken whenever a reload began."""

    class Block(Custom):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(self.a(x)).sin().exp().cos().tanh().sin().cos()  # Read after the rest.
            return x + self.b(F.gelu(function(y)))

    plain = steps(stack(Block))
    context = session(stack(Block), sample())
    live: list[int] = []
    with context as inside:
        store, allocate = context._store, context._store.allocate

        def watched(nbytes: int) -> torch.UntypedStorage:
            live.append(len(store.live))
            made: torch.UntypedStorage = allocate(nbytes)
            return made

        store.allocate = watched
        assert_same(plain, steps(inside))
    often = function is not reads_once
    assert (context.stats()["recomputed_blocks"] > 2 * 4) == often
    return max(live)


def reads_once(x: torch.Tensor) -> torch.Tensor:
    return x.exp().sin()


def test_saved_tensors_read_again_and_again_take_their_slots_once() -> None:
    assert most_slots(ReadsOften.apply) == most_slots(reads_once) > 8
