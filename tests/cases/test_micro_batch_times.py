"""How long micro-batches run and wait, as the counters page gets it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cases.fake_engine import FakeBackend
from cases.framing import framed, peer
from cases.small_gpt import batch, loss_of, make_gpt
from hyperframes._inflight import InFlight, MicroBatchTimes


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def begun(times: MicroBatchTimes, clock: Clock, at: int) -> Callable[[bool], None]:
    clock.now = at
    return times.begin()


def test_the_wait_is_what_lies_between_an_end_and_the_next_begin() -> None:
    clock = Clock()
    times = MicroBatchTimes(clock)
    for begin, end in ((100, 130), (150, 190)):
        ended = begun(times, clock, begin)
        clock.now = end
        ended(True)
    assert times.totals() == (2, 30 + 40, 20)


def test_overlapping_micro_batches_wait_for_none() -> None:
    clock = Clock()
    times = MicroBatchTimes(clock)
    first, second = begun(times, clock, 0), begun(times, clock, 10)
    clock.now = 30
    first(True)
    third = begun(times, clock, 50)
    clock.now = 60
    second(True)
    third(True)
    assert times.totals() == (3, 30 + 50 + 10, 0)


def test_a_forward_that_raised_is_no_micro_batch() -> None:
    clock = Clock()
    times = MicroBatchTimes(clock)
    failed = begun(times, clock, 0)
    clock.now = 5
    failed(False)
    ended = begun(times, clock, 7)
    clock.now = 9
    ended(True)
    assert times.totals() == (1, 2, 2)


def test_a_token_lives_as_long_as_what_its_forward_saved() -> None:
    in_flight = InFlight()
    in_flight.begin(0)
    saved = in_flight.token
    assert saved is not None
    in_flight.completed(0)
    assert in_flight.token is saved and in_flight.times.totals()[0] == 0
    del saved
    assert in_flight.token is None and in_flight.times.totals()[0] == 1


@pytest.mark.parametrize("accumulated", [1, 3])
def test_every_forward_with_its_backward_is_reported(accumulated: int) -> None:
    backend, model = FakeBackend(peer), make_gpt()
    with framed(model, peer, _with=backend) as inside:
        for step in range(2 * accumulated):
            ids, targets = batch(step)
            loss_of(inside(ids), targets).backward()
    count, run_ns, wait_ns = backend.engine.micro_batches[1:]
    assert backend.engine.micro_batches[0] == 0, "a model that is not cut is stage 0"
    assert count == 2 * accumulated
    assert run_ns > 0 and wait_ns > 0
