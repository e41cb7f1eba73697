"""How modes are measured: proofs that can fail, turns, ratios by round, ceilings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from bench.training import drivers, lender
from bench.training.ceiling import Ceiling, Slowdown
from bench.training.hyper import least_budget
from bench.training.measure import (
    Measured,
    Meter,
    OutOfTimeError,
    Plan,
    measure,
    median_ratio,
    row_of,
    time_limit,
)
from bench.training.modes import SimpleMode
from bench.training.offload import Pinned, on_demand_offload
from bench.training.workload import FineTune

CPU = torch.device("cpu")


@pytest.fixture
def workload() -> FineTune:
    made = FineTune(CPU, layers=2, hidden=16, heads=2, dtype=torch.float32)
    made.set_length(8)
    return made


@dataclass
class Wrong:
    """Changes one gradient of the model by the smallest amount there is."""

    workload: FineTune

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        weight: Any = self.workload.model.get_parameter("blocks.1.up.weight")
        handle = weight.register_hook(lambda grad: grad.view(torch.int32).add(1).view(grad.dtype))
        yield
        handle.remove()


def run(workload: FineTune, modes: list[Any]) -> dict[str, Measured]:
    said: list[str] = []
    measured = measure(modes, Meter(workload, CPU), Plan(rounds=2, steps=1), say=said.append)
    return {one.mode.name: one for one in measured}


def test_a_gradient_that_is_off_by_one_bit_takes_a_mode_its_time(workload: FineTune) -> None:
    found = run(
        workload,
        [
            SimpleMode("nothing", contextlib.nullcontext, must_be_equal=True),
            SimpleMode("checkpoint", workload.checkpointing, must_be_equal=True),
            SimpleMode("ours", Wrong(workload), must_be_equal=True),
            SimpleMode("theirs", Wrong(workload)),
        ],
    )
    assert {name: one.verdict for name, one in found.items()} == {
        "nothing": "reference", "checkpoint": "bit-equal", "ours": "different",
        "theirs": "different",
    }  # fmt: skip
    assert not found["ours"].totals
    assert "not timed" in row_of(found["ours"], list(found.values()), 8)["failed"]
    assert len(found["theirs"].totals) == 2


def test_checkpointing_is_the_reference_where_nothing_does_not_run(workload: FineTune) -> None:
    @contextlib.contextmanager
    def full() -> Iterator[None]:
        raise torch.OutOfMemoryError("no room")
        yield

    found = run(
        workload,
        [
            SimpleMode("nothing", full, must_be_equal=True),
            SimpleMode("checkpoint", workload.checkpointing, must_be_equal=True),
            SimpleMode("ours", contextlib.nullcontext, must_be_equal=True),
        ],
    )
    assert found["nothing"].failure == "out of memory"
    assert found["checkpoint"].verdict == "reference"
    assert found["ours"].verdict == "bit-equal"
    row = row_of(found["ours"], list(found.values()), 8)
    assert set(row["throughput_vs"]) == {"checkpoint"}


def test_a_mode_that_fails_leaves_the_others_their_turns(workload: FineTune) -> None:
    steps = iter(range(3))

    @contextlib.contextmanager
    def fails_later() -> Iterator[None]:
        if next(steps) == 1:
            raise RuntimeError("in its first turn")
        yield

    found = run(
        workload,
        [
            SimpleMode("nothing", contextlib.nullcontext, must_be_equal=True),
            SimpleMode("ours", fails_later),
        ],
    )
    assert found["ours"].failure == "RuntimeError: in its first turn"
    assert len(found["nothing"].totals) == 2


def test_ratios_are_taken_round_by_round() -> None:
    def timed(name: str, totals: list[float]) -> Measured:
        mode = SimpleMode(name, contextlib.nullcontext)
        return Measured(mode, totals=totals, verdict="reference")

    drifting = [1.0, 2.0, 4.0]  # A clock that slows down under both alike.
    ratio = median_ratio(timed("a", [t * 1.25 for t in drifting]), timed("b", drifting))
    assert ratio == pytest.approx(0.8)


def test_a_step_that_takes_too_long_is_interrupted() -> None:
    with pytest.raises(OutOfTimeError, match="sleeper: more than"), time_limit(0.05, "sleeper"):
        time.sleep(60)  # Stands for a step that hangs; the limit ends it.


def test_the_ceiling_counts_what_copies_take_from_compute() -> None:
    push, fetch = Slowdown(share=0.25, rate=100.0), Slowdown(share=-0.01, rate=200.0)
    # 10 s of pushing do the work of 8 s; fetches cost nothing.
    assert push.seconds_lost(1000) == pytest.approx(2.0)
    assert fetch.seconds_lost(1000) == 0
    assert Ceiling(push, fetch).versus_nothing(8.0, 1000) == pytest.approx(0.8)


def test_the_smallest_budget_is_read_from_a_refusal() -> None:
    text = "no plan fits; the smallest budget that works is 3.33MiB (3486720 bytes)"
    assert least_budget(text) == 3486720
    assert least_budget("no plan fits") is None


class _NoCopies:
    """Of a driver that costs compute a tenth, or a fiftieth."""

    def __init__(self, share: float) -> None:
        self.share = share


def test_copies_driven_from_either_side_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = torch.device("cuda", 0), torch.device("cuda", 1)
    monkeypatch.setattr(
        drivers, "works", lambda gpu: dict.fromkeys(("elementwise", "matmul"), (0, 0))
    )
    monkeypatch.setattr(lender, "_timed", lambda work, gpu, repeats: 0.01 * repeats)
    monkeypatch.setattr(
        lender, "_loaded",
        lambda copies, direction, work, gpu, repeats, alone: (alone * (1 + copies.share), 3e11),
    )  # fmt: skip

    def make(here: torch.device, there: torch.device, driver: torch.device) -> Any:
        assert driver in (here, there) and here != there
        return _NoCopies(0.1 if driver == here else 0.02)

    said: list[str] = []
    rows = list(drivers.measure_drivers(*gpus, said.append, make))
    assert len(rows) == len({row["mode"] for row in rows}) == len(said) == 8
    for row in rows:
        expected = 0.1 if row["mode"].endswith("by_borrower") else 0.02
        assert row["slowdown"] == pytest.approx(expected) and row["copy_gb_per_s"] == 300


def test_pinned_room_is_used_again_once_nothing_waits_there() -> None:
    pinned = Pinned(pin=False)
    tensor = torch.randn(3, 5).t()
    first, second = pinned.take(tensor), pinned.take(tensor)
    assert first.memory is not second.memory
    first.tensor.copy_(tensor)
    second.tensor.zero_()
    assert torch.equal(first.tensor, tensor) and first.tensor.stride() == tensor.stride()
    memory = first.memory
    del first
    assert pinned.take(torch.empty(4)).memory is not memory, "its room is larger"
    third = pinned.take(tensor)
    assert third.memory is memory


def test_offload_on_demand_gives_the_plain_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    x = torch.randn(64, 64)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).square().sum().backward()
        return [
            parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
        ]

    plain = gradients()
    with on_demand_offload(model, CPU):
        for _ in range(2):
            assert all(map(torch.equal, plain, gradients()))
