"""Before the first step of several ranks: collectives against what is promised, doing no harm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hyperframes import _preflight
from hyperframes._backend import EmbeddedBackend
from hyperframes._preflight import ENOUGH, LARGEST, LIMIT_S, PATIENCE_S, SMALLEST, judged, measure
from hyperframes._ring import Pending

GPUS = ["SIM-local-0", "SIM-local-1"]
PROMISING = "2 x 64MiB@collective-promise=100GB"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Done once so many seconds of the clock have passed."""

    def __init__(self, clock: Clock, seconds: float, agreed: Sequence[float] = ()) -> None:
        self._clock = clock
        self._left = seconds
        self._agreed = list(agreed)

    def wait(self, seconds: float | None) -> bool:
        step = self._left if seconds is None else min(self._left, seconds)
        self._clock.now += step
        self._left -= step
        return self._left <= 0

    def values(self) -> list[float]:
        assert self._left <= 0, "read before it was done"
        return self._agreed


Cost = Callable[[str, int], float]  # Seconds of a collective with so many bytes.


def at(bytes_per_second: float, latency_s: float = 50e-6) -> Cost:
    return lambda kind, nbytes: latency_s + nbytes / bytes_per_second


class FakeRing:
    """Of several ranks one: the others are as fast, or take `others` seconds at the least."""

    def __init__(self, clock: Clock, cost: Cost, *, rank: int = 0, size: int = 2) -> None:
        self.clock, self.cost, self.rank, self.size = clock, cost, rank, size
        self.others: Cost = lambda kind, nbytes: 0.0
        self.begun: list[tuple[str, int]] = []
        self.verdict_of_first: list[Any] = []  # What rank 0 tells the others, where it is not us.
        self._slowest = 0.0

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def first(self, value: Any) -> Any:
        return value if self.rank == 0 else self.verdict_of_first.pop(0)

    def agree(self, values: Sequence[float]) -> Pending:
        own, elapsed = values
        return Work(self.clock, 0.0, [max(own, self._slowest), elapsed])

    def all_reduce(self, nbytes: int) -> Pending:
        return self._begin("all-reduce", nbytes)

    def send_receive(self, nbytes: int) -> Pending:
        return self._begin("send-receive", nbytes)

    def _begin(self, kind: str, nbytes: int) -> Pending:
        self.begun.append((kind, nbytes))
        self._slowest = self.others(kind, nbytes)
        return Work(self.clock, self.cost(kind, nbytes))


def never(*what: Any) -> None:
    raise AssertionError(f"failed: {what}")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> EmbeddedBackend:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", PROMISING)
    return EmbeddedBackend(torch.device("cpu"))


def test_bus_bandwidth_is_what_nccl_tests_call_so(backend: EmbeddedBackend) -> None:
    clock = Clock()
    ring = FakeRing(clock, at(LARGEST / 0.004, latency_s=0), size=4)
    verdict = judged(backend, ring, GPUS * 2, clock)
    speeds = verdict["bus_bytes_per_second"]
    assert speeds["all-reduce"] == pytest.approx(LARGEST / 0.004 * 2 * 3 / 4)
    assert speeds["send-receive"] == pytest.approx(LARGEST / 0.004)
    assert verdict["promised_bytes_per_second"] == 100e9


def test_the_slowest_rank_counts_and_of_the_rounds_the_best() -> None:
    clock = Clock()
    ring = FakeRing(clock, at(400e9))
    turns = iter(range(1000))

    def others(kind: str, nbytes: int) -> float:
        return 0.2 if next(turns) % 3 == 0 else 0.01  # A hiccup now and then.

    ring.others = others
    found = {one.kind: one for one in measure(ring, clock, never)}
    assert found["all-reduce"].seconds == 0.01
    assert found["send-receive"].seconds == 0.01
    assert found["all-reduce"].bytes == LARGEST


def test_little_is_enough_of_a_slow_link_and_the_time_is_kept() -> None:
    clock = Clock()
    began = clock.now
    ring = FakeRing(clock, at(10e6))  # The largest would take 3.4 s.
    found = measure(ring, clock, never)
    assert [one.kind for one in found] == ["all-reduce", "send-receive"]
    assert all(one.bytes < ENOUGH for one in found)
    assert all(one.bytes / one.seconds == pytest.approx(10e6, rel=0.01) for one in found)
    assert clock.now - began <= LIMIT_S


@pytest.mark.parametrize("speed", [1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12])
def test_whatever_the_speed_it_is_over_in_under_three_seconds(speed: float) -> None:
    clock = Clock()
    began = clock.now

    ring = FakeRing(clock, at(speed))
    found = measure(ring, clock, never)
    assert clock.now - began < 3.0
    assert [one.bytes / one.seconds for one in found] == [pytest.approx(speed, rel=0.7)] * 2
    assert sum(nbytes for _, nbytes in ring.begun) <= 256 << 20


def test_where_connecting_takes_the_time_few_bytes_are_not_taken_for_a_slow_link() -> None:
    clock = Clock()
    ring = FakeRing(clock, at(20e9, latency_s=0.0005))
    slow_start = {"all-reduce": 1.2485, "send-receive": 0.0}
    fast = ring.cost

    def cost(kind: str, nbytes: int) -> float:
        return slow_start.pop(kind, 0.0) + fast(kind, nbytes)

    ring.cost = cost
    found = measure(ring, clock, never)
    assert ("all-reduce", SMALLEST) in ring.begun[1:], "it was measured with a little"
    assert [(one.kind, one.bytes) for one in found] == [("send-receive", LARGEST)]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_not_done_in_time_is_told_of_once_by_rank_0_and_waited_for(
    backend: EmbeddedBackend, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    clock = Clock()
    ring = FakeRing(clock, at(100e9), rank=rank)
    hanging = ["all-reduce", "send-receive"]
    fast = ring.cost

    def cost(kind: str, nbytes: int) -> float:
        if kind in hanging:
            hanging.remove(kind)
            return 40.0
        return fast(kind, nbytes)

    ring.cost = cost
    ring.verdict_of_first = [True, {}]
    assert judged(backend, ring, GPUS, clock) == {}
    assert clock.now >= 180.0, "both were waited for: what comes after them would have been blocked"
    assert ring.begun == [("all-reduce", SMALLEST), ("send-receive", SMALLEST)]
    said = capsys.readouterr().err
    if rank == 0:
        assert said.startswith(f"HyperFrames: all-reduce of 2 ranks: not done {PATIENCE_S:.1f} s")
        assert "HYPERFRAMES_HOST_DEVICES" in said and said.count("It is waited for") == 1
        assert said.count("\n") == 1
    else:
        assert said == ""


def test_below_a_tenth_rank_0_alone_says_to_leave_hyperframes_off(
    backend: EmbeddedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()

    def cost(kind: str, nbytes: int) -> float:
        return nbytes / (9e9 if kind == "all-reduce" else 11e9)

    verdict = judged(backend, FakeRing(clock, cost), GPUS, clock)
    assert [unfit["kind"] for unfit in verdict["unfit"]] == ["all-reduce"]
    said = capsys.readouterr().err
    assert said.startswith(
        "HyperFrames: leave HyperFrames off: all-reduce SIM-local-0 -> SIM-local-1: 9.0GB/s, "
        "promised 100GB/s (HYPERFRAMES_HOST_DEVICES); the simulated link"
    )
    assert said.count("\n") == 1

    other = FakeRing(clock, cost, rank=1)
    other.verdict_of_first = [True, verdict]
    assert judged(backend, other, GPUS, clock) == verdict
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("devices", ["2 x 64MiB", "SIM-local-0=1GiB@collective-promise=1TB"])
def test_where_nothing_is_promised_nothing_is_measured_or_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], devices: str
) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", devices)
    clock = Clock()
    ring = FakeRing(clock, at(1e6))
    assert judged(EmbeddedBackend(torch.device("cpu")), ring, GPUS, clock) == {}
    assert ring.begun == []
    assert capsys.readouterr().err == ""


def test_an_error_is_told_with_its_likely_cause_and_raised(
    backend: EmbeddedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    ring = FakeRing(clock, at(1e9))

    def broken(kind: str, nbytes: int) -> float:
        raise RuntimeError("unhandled system error")

    ring.cost = broken
    with pytest.raises(RuntimeError, match="unhandled system error"):
        judged(backend, ring, GPUS, clock)
    said = capsys.readouterr().err
    assert "leave HyperFrames off: all-reduce SIM-local-0 -> SIM-local-1: no way" in said
    assert "unhandled system error, perhaps because" in said


@dataclasses.dataclass(eq=False)
class Group:
    """Stands for a process group."""


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that rings were opened with; two ranks, as far as anybody can tell."""
    opened: list[int] = []
    clock = Clock()

    def open_ring(device: torch.device, nbytes: int) -> FakeRing:
        opened.append(nbytes)
        return FakeRing(clock, at(1e9))

    group = Group()
    monkeypatch.setattr(_preflight, "_group", lambda: group)
    monkeypatch.setattr(_preflight, "world_size", lambda: 2)
    monkeypatch.setattr(_preflight, "fits", lambda device: True)
    monkeypatch.setattr(_preflight, "gather", lambda value: [{**value, "gpu": gpu} for gpu in GPUS])
    monkeypatch.setattr(_preflight, "JobRing", open_ring)
    return opened


def test_it_is_measured_once_for_each_group(
    backend: EmbeddedBackend, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        _preflight.look_at_collectives(backend, 1 << 30)
    assert entered == [LARGEST]
    assert _preflight.verdict()["promised_by"] == "HYPERFRAMES_HOST_DEVICES"
    another = Group()
    monkeypatch.setattr(_preflight, "_group", lambda: another)
    assert _preflight.verdict() == {}
    _preflight.look_at_collectives(backend, 1 << 30)
    assert len(entered) == 2


def test_it_takes_no_memory_that_a_step_would_not_take(
    backend: EmbeddedBackend, entered: list[int]
) -> None:
    _preflight.look_at_collectives(backend, 2 * LARGEST - 1)
    assert entered == []
    assert _preflight.verdict() == {}


def test_one_rank_alone_costs_nothing(
    backend: EmbeddedBackend, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_preflight, "world_size", lambda: 1)
    _preflight.look_at_collectives(backend, 1 << 30)
    assert entered == []
    assert _preflight.verdict() == {}
