"""When a line is printed and which: a clock that the test moves, no sleeping."""

from __future__ import annotations

import io

import pytest

from hyperframes._progress import progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_work_under_two_seconds_prints_nothing() -> None:
    clock, out = Clock(), io.StringIO()
    with progress("profiling", total=3, clock=clock, stream=out, enabled=True) as tick:
        for _ in range(3):
            clock.now += 0.6
            tick("layers")
    assert out.getvalue() == ""


def test_a_line_comes_every_two_seconds_and_the_last_says_done() -> None:
    clock, out = Clock(), io.StringIO()
    with progress("profiling", total=10, unit="blocks", clock=clock, stream=out, enabled=True) as t:
        for index in range(10):
            clock.now += 0.5
            t(f"layers.{index}")
    assert out.getvalue().splitlines() == [
        "HyperFrames: profiling 4/10 blocks (layers.3), 2 s",
        "HyperFrames: profiling 8/10 blocks (layers.7), 4 s",
        "HyperFrames: profiling 10/10 blocks (layers.9), 5 s: done",
    ]


def test_on_a_terminal_one_line_is_written_over_itself() -> None:
    clock, out = Clock(), Terminal()
    with progress("mapping", clock=clock, stream=out, enabled=True) as tick:
        clock.now += 2
        tick("a long name of a lease")
        clock.now += 2
        tick("b")
    first, second, last = out.getvalue().split("\r")[1:]
    assert first == "HyperFrames: mapping 1 (a long name of a lease), 2 s"
    assert len(second) == len(first)  # Nothing of the longer line is left standing.
    assert last.endswith("done" + "\n") or last.rstrip().endswith("done")
    assert out.getvalue().count("\n") == 1


def test_whoever_waits_looks_without_having_done_anything() -> None:
    clock, out = Clock(), io.StringIO()
    with progress("waiting for the plan", clock=clock, stream=out, enabled=True) as tick:
        clock.now += 2
        tick.look()
        tick.look()
    assert out.getvalue().splitlines()[0] == "HyperFrames: waiting for the plan, 2 s"
    assert len(out.getvalue().splitlines()) == 2


def test_work_that_raises_is_not_said_to_be_done() -> None:
    clock, out = Clock(), io.StringIO()
    with (
        pytest.raises(ValueError, match="broken"),
        progress("checking", clock=clock, stream=out, enabled=True) as tick,
    ):
        clock.now += 3
        tick()
        raise ValueError("broken")
    assert "done" not in out.getvalue()


def test_on_a_terminal_an_error_begins_a_line_of_its_own() -> None:
    clock, out = Clock(), Terminal()
    with (
        pytest.raises(ValueError, match="broken"),
        progress("checking", clock=clock, stream=out, enabled=True) as tick,
    ):
        clock.now += 3
        tick()
        raise ValueError("broken")
    assert out.getvalue().endswith("3 s\n")


@pytest.mark.parametrize(("name", "value"), [("HYPERFRAMES_PROGRESS", "off"), ("RANK", "1")])
def test_it_is_silent_when_told_to_be_and_on_every_rank_but_the_first(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    clock, out = Clock(), io.StringIO()
    with progress("profiling", clock=clock, stream=out) as tick:
        clock.now += 5
        tick()
    assert out.getvalue() == ""


def test_a_closed_stream_does_not_end_the_work() -> None:
    clock, out = Clock(), io.StringIO()
    out.close()
    with progress("profiling", clock=clock, stream=out, enabled=True) as tick:
        clock.now += 5
        tick()


def test_a_line_is_bounded() -> None:
    clock, out = Clock(), io.StringIO()
    with progress("profiling", clock=clock, stream=out, enabled=True) as tick:
        clock.now += 5
        tick("x" * 1000)
    assert max(map(len, out.getvalue().splitlines())) < 260
