"""Stands between a session and its engine and notes which frame was waited for, on which lane.

Light enough for timed steps: two readings of the clock per call. On a GPU ``wait`` only orders
streams, so that waits show in the engine's own ``exposed_wait`` but not by frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ._engine import TIER_NAMES, Backend, Engine, Placement

_MOST_STEPS = 10_000


class FrameKey(NamedTuple):
    """One storage of one step, on its way out or back."""

    block: int  # Index in the plan.
    ordinal: int
    direction: str  # "out" or "in".


class Lane(NamedTuple):
    """Where a frame went."""

    tier: str
    device: str
    nbytes: int


class Recorder:
    """What the observed engines of one session did.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.lanes: dict[tuple[int, int], Lane] = {}
        self.waits: list[dict[FrameKey, float]] = []  # By step.
        self.bytes_by_device: dict[tuple[str, str], int] = {}  # (tier, device): bytes out.
        self.options: dict[str, bool] = {}
        self._closed: dict[str, Any] = {}
        self._live: list[Engine] = []

    def begin_step(self) -> None:
        """What is noted from now on belongs to a new step."""
        if len(self.waits) < _MOST_STEPS:
            self.waits.append({})

    def note(self, key: FrameKey, seconds: float) -> None:
        """The computation stood still for a frame."""
        if self.waits:
            step = self.waits[-1]
            step[key] = step.get(key, 0.0) + seconds

    def stats(self) -> dict[str, Any]:
        """Stats of all engines together, closed ones included."""
        total = self._closed
        for engine in self._live:
            total = merged(total, engine.stats())
        return total

    def opened(self, engine: Engine) -> None:
        """An engine of the session starts."""
        self._live.append(engine)

    def closing(self, engine: Engine) -> None:
        """An engine is about to close; its stats are kept."""
        if engine in self._live:
            self._live.remove(engine)
            self._closed = merged(self._closed, engine.stats())


def merged(first: Mapping[str, Any], second: Mapping[str, Any], sign: int = 1) -> dict[str, Any]:
    """Sums (or with ``sign=-1`` differences) of two trees of numbers."""
    result: dict[str, Any] = {}
    for key in {**first, **second}:
        a, b = first.get(key), second.get(key)
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            result[key] = merged(a or {}, b or {}, sign)
        else:
            result[key] = (a or 0) + sign * (b or 0)
    return result


class ObservedEngine:
    """An engine whose calls are noted. Those that are not are the engine's own."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine = engine
        self._recorder = recorder
        self._keys: dict[int, tuple[int, int]] = {}
        self._closed = False
        self.fetch = engine.fetch
        self.set_limits = engine.set_limits
        self.quiesce = engine.quiesce
        self.stats = engine.stats
        self.report = engine.report
        self.report_micro_batches = engine.report_micro_batches
        self.take_revocation = engine.take_revocation
        recorder.opened(engine)

    def put(
        self,
        micro_batch: int,
        block: int,
        ordinal: int,
        source: int,
        nbytes: int,
        tier: int,
        device: str,
        preferred_offset: int,
        stream: int,
    ) -> Placement:
        recorder = self._recorder
        start = recorder.clock()
        placed = self._engine.put(
            micro_batch, block, ordinal, source, nbytes, tier, device, preferred_offset, stream
        )
        recorder.note(FrameKey(block, ordinal, "out"), recorder.clock() - start)
        if placed.handle:
            self._keys[placed.handle] = block, ordinal
            where = TIER_NAMES[placed.tier], device if placed.tier == tier else ""
            recorder.lanes[block, ordinal] = Lane(*where, nbytes)
            moved = recorder.bytes_by_device
            moved[where] = moved.get(where, 0) + nbytes
        return placed

    def take_releasable(self, limit: int, stream: int) -> list[int]:
        return self._engine.take_releasable(limit, stream)

    def wait(self, handle: int, stream: int) -> None:
        recorder = self._recorder
        start = recorder.clock()
        self._engine.wait(handle, stream)
        seconds = recorder.clock() - start
        key = self._keys.get(handle)
        if key is not None:
            recorder.note(FrameKey(*key, "in"), seconds)

    def next_to_prefetch(self) -> list[tuple[int, int]]:
        return self._engine.next_to_prefetch()

    def drop(self, handle: int) -> None:
        self._keys.pop(handle, None)
        self._engine.drop(handle)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._recorder.closing(self._engine)
        self._engine.close()

    def frame(self, handle: int) -> tuple[int, int] | None:
        """(block index, ordinal) of a live handle."""
        return self._keys.get(handle)


class ObservedBackend:
    """A backend whose engines are observed."""

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self._backend = backend
        self._recorder = recorder
        self.gpu = backend.gpu
        self.plans_once = backend.plans_once
        self.describe = backend.describe
        self.plan = backend.plan
        self.close = backend.close

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Engine:
        return ObservedEngine(self._backend.open_engine(plan, options), self._recorder)
