"""Second runs that fail, that are read in odd ways, and whose engine is gone."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import hyperframes as hf
from cases.backends import BACKENDS
from cases.fake_engine import FakeBackend
from cases.moved_rerun import (
    BOTH,
    NOTHING,
    all_moved,
    inputs_of,
    left_behind,
    loss_on,
    plan_of,
    session,
)
from cases.selective_models import (
    WIDTH,
    Grouped,
    sample,
    stack,
    steps,
)
from cases.small_gpt import (
    assert_same,
    gradients,
    same_gradients,
)


class Fails(nn.Module):
    """Raises when told to, halfway through a run."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.error: Exception | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.a(x)).sin()
        if self.error is not None:
            raise self.error
        return x + self.b(y)


class Mismatches(Fails):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.a(x)).sin()
        if self.error is not None:
            return y.double().exp().float()
        return x + self.b(y.exp())


@pytest.mark.parametrize("backend_name", BOTH)
@pytest.mark.parametrize("make", [Fails, Mismatches])
def test_an_error_in_the_second_run_leaves_nothing_behind(make: Any, backend_name: str) -> None:
    plain = steps(stack(make))
    context = session(stack(make), sample(), all_moved, backend_name)
    with context as inside:
        loss = loss_on(inside)
        inside.layers[0].error = ValueError("by order")
        with pytest.raises((ValueError, hf.RecomputeMismatch)) as failure:
            loss.backward()
        inside.layers[0].error = None
        # The exception is held, and with its traceback all that was local to the block's run.
        assert not any(waiting.moved for waiting in context._store.borrowed)
        assert len(context._store.live) <= inputs_of(context)
        assert not context._store.stash
        del loss, failure
        gc.collect()
        assert left_behind(context)[:3] == NOTHING[:3]
        assert_same(plain, steps(inside))
        assert left_behind(context) == NOTHING


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: Any) -> torch.Tensor:
        ctx.block = block
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        if ctx.block.error is not None:
            raise ctx.block.error
        return grads[0], None


def test_a_backward_that_fails_gives_its_slots_back_before_the_next_forward() -> None:
    class Block(Fails):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(self.a(x)).sin()
            return x + self.b(Raises.apply(y, self).exp())

    # Inputs stay: nothing but what was made again could keep the next step from its own.
    rule = lambda block, storage: "keep" if storage["is_input"] else "recompute:peer"  # noqa: E731
    plain = steps(stack(Block))
    context = session(stack(Block), sample(), rule)
    with context as inside:
        loss = loss_on(inside)
        inside.layers[1].error = ValueError("by order")
        with pytest.raises(ValueError, match="by order"):
            loss.backward()
        inside.layers[1].error = None
        assert len(context._store.live) > 0  # The failed task's: nobody was told that it ended.
        before = context.stats()["steps"]
        assert_same(plain, steps(inside))
        assert context.stats()["steps"] == before + 2
        assert left_behind(context)[:3] == NOTHING[:3]
        assert loss.grad_fn is not None


def test_a_change_in_place_after_saving_is_eagers_error() -> None:
    class Block(Fails):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x) * 1.0
            z = y.sin()
            y.mul_(2.0)
            return self.b(z)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss_on(stack(Block)).backward()
    context = session(stack(Block), sample(), all_moved)
    with context as inside:
        loss = loss_on(inside)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as found:
            loss.backward()
        assert "[2, 32, 64]] is at version 1; expected version 0" in str(found.value)
        del loss, found
        gc.collect()
        assert context._store.quiesce()
        assert left_behind(context)[:3] == NOTHING[:3]


def test_a_change_in_place_that_only_the_second_run_makes_is_eagers_error() -> None:
    class Block(Fails):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(self.a(x))
            z = y.exp()
            if self.error is not None:
                y.mul_(2.0)
            return self.b(z)

    context = session(stack(Block), sample())
    with context as inside:
        loss = loss_on(inside)
        inside.layers[0].error = ValueError("by order")
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
            loss.backward()


class ChangesLater(nn.Module):
    """Saves a storage, changes it, and saves it again; what was saved first is not needed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.left: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x) * 1.0
        self.left = y.sin()  # Kept, so that it is saved; never part of the loss.
        y.mul_(3.0)
        return self.b(y.sin())


@pytest.mark.parametrize("backend_name", BOTH)
def test_a_storage_that_was_changed_is_put_away_again(backend_name: str) -> None:
    plain = steps(stack(ChangesLater))
    context = session(stack(ChangesLater), sample(), all_moved, backend_name)
    with context as inside:
        assert_same(plain, steps(inside))
    assert context.stats()["rerun_moved_storages"] > 0


class Keeps(nn.Module):
    """Keeps a tensor of its last run, graph and all, as auxiliary losses are."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kept: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.a(x)).exp()
        self.kept = y.sin().mean()
        return x + self.b(y)


def test_a_graph_of_the_second_run_that_the_module_keeps_holds_no_slot() -> None:
    plain = steps(stack(Keeps))
    context = session(stack(Keeps), sample())
    with context as inside:
        assert_same(plain, steps(inside))
        assert left_behind(context)[:3] == NOTHING[:3]
        with pytest.raises(hf.FailedPrecondition, match=r"layers\.0's recomputation"):
            inside.layers[0].kept.backward()


class DifferentiatesInside(nn.Module):
    """Its forward runs a backward of its own, through what it has saved so far."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.a(x)).exp()
        (force,) = torch.autograd.grad(y.square().sum(), y, create_graph=True)
        slope = torch.autograd.grad(y.sum(), self.a.weight, create_graph=True)[0]
        return self.b(y + force @ slope)


def test_a_backward_inside_the_second_run_reads_what_was_put_away() -> None:
    plain = steps(stack(DifferentiatesInside))
    context = session(stack(DifferentiatesInside), sample())
    with context as inside:
        assert_same(plain, steps(inside))
        assert left_behind(context)[:3] == NOTHING[:3]
    assert context.stats()["rerun_moved_storages"] > 0
    assert context._profile.block("layers.0").rerun_bytes == 0  # Cannot be measured: unknown.


def test_a_backward_after_the_context_was_left_runs_again_and_keeps_all_here() -> None:
    rule = lambda block, storage: "keep" if storage["is_input"] else "recompute:peer"  # noqa: E731
    plain = stack(Grouped)
    loss_on(plain).backward()
    for backend_name in BACKENDS:
        model = stack(Grouped)
        context = session(model, sample(), rule, backend_name)
        with context as inside:
            plan_of(context)
            loss = loss_on(inside)
        loss.backward()  # Its leases went back when nothing waited on them.
        assert same_gradients(gradients(plain), gradients(model))
        assert context.stats()["rerun_moved_storages"] == 0


def test_an_engine_that_keeps_everything_changes_nothing() -> None:
    plain = steps(stack(Grouped))
    backend = FakeBackend(all_moved)
    context = session(stack(Grouped), sample(), all_moved, backend)
    with context as inside:
        backend.engine.keep_everything = True
        assert_same(plain, steps(inside))
    assert context.stats()["rerun_moved_storages"] == 0


def test_other_sizes_than_were_profiled_stay() -> None:
    profile = hf.profile(stack(Grouped), sample())
    for storage in profile.block("layers.0").storages:
        storage.nbytes += 0 if storage.is_input else 512
    context = hf.hyperframes(
        stack(Grouped), profile=profile, _backend=FakeBackend(all_moved), activation_budget="1GiB"
    )
    with context as inside:
        assert_same(steps(stack(Grouped)), steps(inside))
        there = sum(len(found) for found in plan_of(context).rerun.values())
        wrong = len(plan_of(context).rerun["layers.0"])
    assert context.stats()["rerun_moved_storages"] == 2 * (there - wrong) > 0
