"""What blocks make again waits elsewhere in backward: the bits, and which storage is which."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from cases.backends import BACKENDS
from cases.moved_rerun import (
    BOTH,
    all_moved,
    by_seed,
    moved,
    plan_of,
    session,
)
from cases.selective_models import (
    WIDTH,
    Custom,
    Experts,
    Grouped,
    InPlace,
    Noisy,
    RandomGraph,
    Tables,
    sample,
    stack,
    steps,
)
from cases.shared_storages import make_rotary, make_unet
from cases.small_gpt import (
    DEVICE,
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
    train,
)
from cases.test_shared_storages import by_chance
from hyperframes._rerun import Ordinals
from hyperframes.plan import Plan


class Saved(NamedTuple):
    block: str
    ordinal: int
    dtype: str
    shape: list[int]
    nbytes: int


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[Saved]:
    """What second runs saved first of each storage, and the place that it was given."""
    seen: list[Saved] = []
    original = Ordinals.second_run

    def second_run(self: Ordinals, plan: Plan) -> Any:
        place_of, places = original(self, plan), set()

        def spy(index: int, tensor: torch.Tensor) -> Any:
            place = place_of(index, tensor)
            if place is not None and place.ordinal not in places:
                places.add(place.ordinal)
                dtype = str(tensor.dtype).removeprefix("torch.")
                nbytes = tensor.untyped_storage().nbytes()
                seen.append(Saved(place.block, place.ordinal, dtype, list(tensor.shape), nbytes))
            return place

        return spy

    monkeypatch.setattr(Ordinals, "second_run", second_run)
    return seen


def assert_as_profiled(
    context: Any, again: list[Saved], times: int, old: Mapping[str, int] | None = None
) -> None:
    """Every storage that a block made again got the ordinal that it was profiled under.

    Args:
        old: by block, how many of its storages it finds in its surroundings.
    """
    plan = plan_of(context)
    profile = context._profile
    for saved in again:
        profiled = {s.ordinal: s for s in profile.block(saved.block).storages}[saved.ordinal]
        known = profiled.dtype, profiled.shape, profiled.nbytes
        assert known == (saved.dtype, saved.shape, saved.nbytes), f"{saved}"
    for name in plan.rerun:
        own = {s.ordinal for s in profile.block(name).storages if not s.is_input}
        counted = Counter(saved.ordinal for saved in again if saved.block == name)
        assert set(counted) <= own
        assert len(counted) == len(own) - (old or {}).get(name, 0), name
        assert set(counted.values()) == {times}


@pytest.mark.parametrize("backend_name", BOTH)
@pytest.mark.parametrize(
    ("dropout", "autocast"),
    [(0.0, None), (0.2, None), (0.2, torch.bfloat16)],
    ids=["plain", "dropout", "bfloat16"],
)
def test_the_bits_are_those_of_the_plain_run(
    dropout: float, autocast: torch.dtype | None, backend_name: str, again: list[Saved]
) -> None:
    plain = train(make_gpt(dropout=dropout), autocast=autocast)
    model = make_gpt(dropout=dropout)
    ids, targets = batch(0)
    context = session(
        model, ids, moved, backend_name, loss_fn=lambda out: loss_of(out, targets), dtype=autocast
    )
    with context as inside:
        assert_same(plain, train(inside, autocast=autocast))
        assert_as_profiled(context, again, times=3)
    stats = context.stats()
    went = [saved for saved in again if saved.ordinal in context.plan.rerun[saved.block]]
    assert stats["rerun_moved_storages"] == len(went) > 3 * 3 * 5
    assert stats["rerun_moved_bytes"] == sum(saved.nbytes for saved in went) // 3
    assert stats["overflowed_storages"] == stats["unplanned_storages"] == 0
    assert stats["engine"]["live_storages"] == 0


KINDS: dict[str, Callable[[], nn.Module]] = {
    "grouped attention": Grouped,
    "in place": InPlace,
    "experts": Experts,
    "random numbers": Noisy,
    "function that reads twice": Custom,
    "tables": Tables,
}


def cast_steps(model: nn.Module, cast: str) -> Any:
    """Two steps under autocast: of the "forward"s only, "around" all of it, or in the forwards with
    one that is switched off around all of it ("both"), which keeps the casts of the first step."""

    def autocast(enabled: bool) -> Any:
        return torch.autocast(DEVICE.type, torch.bfloat16, enabled=enabled)

    original = model.forward

    def forward(*args: Any) -> Any:
        with autocast(True):
            return original(*args)

    if cast in ("forward", "both"):
        model.forward = forward
    with autocast(cast == "around") if cast in ("around", "both") else contextlib.nullcontext():
        return steps(model)


def type_of(cast: str) -> torch.dtype | None:
    return torch.bfloat16 if cast else None


@pytest.mark.parametrize("backend_name", ["unkind", "chaotic"])
@pytest.mark.parametrize("cast", ["", "forward", "around"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_block_gives_the_bits_of_the_plain_run(
    kind: str, cast: str, backend_name: str, again: list[Saved]
) -> None:
    plain = cast_steps(stack(KINDS[kind]), cast)
    context = session(stack(KINDS[kind]), sample(), all_moved, backend_name, dtype=type_of(cast))
    with context as inside:
        assert_same(plain, cast_steps(inside, cast))
        assert {"layers.0", "layers.1"} <= set(plan_of(context).rerun)
        # A Function that reads twice makes its block run again; what the caller's own autocast
        # keeps is not made again at all.
        if "twice" not in kind and cast in ("", "forward"):
            assert_as_profiled(
                context,
                again,
                times=2,
                old={"layers.0": 1, "layers.1": 1} if kind == "tables" else {},
            )
    stats = context.stats()
    assert stats["rerun_moved_storages"] > 0
    assert stats["engine"]["live_storages"] == 0


def test_casts_that_the_caller_keeps_from_step_to_step_are_those_of_the_plain_run() -> None:
    plain = cast_steps(stack(Grouped), "both")
    context = session(stack(Grouped), sample(), dtype=torch.bfloat16)
    with context as inside:
        assert_same(plain, cast_steps(inside, "both"))
    assert context.stats()["rerun_moved_storages"] > 0


@pytest.mark.parametrize("seed", range(16))
def test_random_graphs_of_operators_give_the_bits_of_the_plain_run(
    seed: int, again: list[Saved]
) -> None:
    plain = steps(stack(lambda: RandomGraph(seed)))
    backend = ("native", "unkind", "chaotic")[seed % 3]
    rule = by_seed(seed) if seed % 2 else moved
    context = session(stack(lambda: RandomGraph(seed)), sample(), rule, backend)
    with context as inside:
        assert_same(plain, steps(inside))
        if not seed % 2:
            assert_as_profiled(context, again, times=2)
    assert context.stats()["engine"]["live_storages"] == 0


@pytest.mark.parametrize("seed", range(16))
def test_whatever_blocks_leave_to_each_other_the_bits_agree(seed: int, again: list[Saved]) -> None:
    model, x = by_chance(seed, keeps=seed % 4 == 0)
    assert_equal_steps(model, x, moved if seed % 3 else by_seed(seed), seed, again)


@pytest.mark.parametrize("rule", [moved, all_moved])
@pytest.mark.parametrize("make", [make_unet, make_rotary])
def test_skips_and_rotary_embeddings_give_the_bits_of_the_plain_run(
    make: Any, rule: Any, again: list[Saved]
) -> None:
    model, x = make()
    assert_equal_steps(model, x, rule, 0, again)


def assert_equal_steps(model: nn.Module, x: torch.Tensor, rule: Any, seed: int, again: Any) -> None:
    def run() -> list[Any]:
        model.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        return [loss.detach(), *gradients(model)]

    plain = run()
    context = session(model, x, rule, ("unkind", "native")[seed % 2])
    with context:
        for _ in range(2):
            assert same_gradients(plain, run())
        if rule in (moved, all_moved):
            assert_as_profiled(context, again, times=2)
        assert not context.stats()["engine"]["live_storages"]


class TwiceCalled(nn.Module):
    """One block that is called three times: "layers.0", "layers.0#2" and "layers.0#3"."""

    def __init__(self, make: Callable[[], nn.Module] = Grouped) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([make()])
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(3):
            x = self.layers[0](x)
        return self.last(x)


@pytest.mark.parametrize("cast", ["", "forward"])
@pytest.mark.parametrize("make", [Grouped, Tables])
def test_a_block_that_is_called_three_times(make: Any, cast: str, again: list[Saved]) -> None:
    """Under autocast the calls share the casts of their weights, and all share the table: both
    belong to the first call."""
    plain = cast_steps(TwiceCalled(make), cast)
    context = session(TwiceCalled(make), sample(), all_moved, dtype=type_of(cast))
    with context as inside:
        assert_same(plain, cast_steps(inside, cast))
        assert {"layers.0", "layers.0#2", "layers.0#3"} <= set(plan_of(context).rerun)
        assert_as_profiled(context, again, times=2, old={"layers.0": make is Tables})


class Views(nn.Module):
    """Saves three views of one storage, one of them twice, and a scalar over a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.a(x).chunk(3, -1)
        y = q * k + v.sin() * q
        return self.b(y * y.exp()[0, 0, 0])


@pytest.mark.parametrize("backend_name", BOTH)
def test_views_of_one_storage_go_once_and_come_back_once(
    backend_name: str, again: list[Saved]
) -> None:
    plain = steps(stack(Views))
    backend = BACKENDS[backend_name](all_moved)
    context = session(stack(Views), sample(), all_moved, backend)
    with context as inside:
        assert_same(plain, steps(inside))
        assert_as_profiled(context, again, times=2)
        assert sum(saved.nbytes == sample().nbytes * 3 for saved in again) == 2 * 2
        if backend_name == "unkind":
            assert backend.engine.fetches == sum(backend.engine.puts)
