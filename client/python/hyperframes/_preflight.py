"""The pre-flight of a job of several ranks, before its first step.

An all-reduce and a send/recv are measured in the process group that training itself will use, and
judged by the library as ``hfctl doctor`` judges its own. Below a tenth of what the links promise
rank 0 says so. Nothing of the training depends on it.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from ._group import world_size
from ._progress import tell
from ._ring import JobRing, Pending, Ring, fits, gather

_KIB, _MIB = 1 << 10, 1 << 20
LIMIT_S = 2.5  # Nothing begins that is not expected to be done by then.
PATIENCE_S = 3.0  # What is not done by then is spoken of.
_LEAST_PATIENCE_S = 0.25
SMALLEST, LARGEST = 64 * _KIB, 32 * _MIB  # Of one rank, in one collective.
# NVLink is at a tenth of its speed with less; what takes as long as that is slow with any size.
ENOUGH, _NO_LATENCY_S = 16 * _MIB, 0.01
_GROWTH = 8
_ROUNDS = 3

Verdict = dict[str, Any]  # See client/c/unfit_collectives.h.
Failed = Callable[[str, str, bool], None]  # Kind, what happened, whether it is waited for.


@runtime_checkable
class Judge(Protocol):
    """A backend that knows what the links of its machine promise."""

    @property
    def gpu(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    def judge_collectives(self, gpus: list[str], measured: list[dict[str, Any]]) -> Verdict:
        """``gpus``: of each rank; ``measured``: as ``Measured``, or ``{"kind", "error"}``."""
        ...


@dataclass(frozen=True)
class Measured:
    """One collective at its largest: the best round, in which the slowest rank counts."""

    kind: str
    bytes: int
    seconds: float


# One verdict for each group that this process has had; empty where nothing was measured.
_verdicts: weakref.WeakKeyDictionary[Any, Verdict] = weakref.WeakKeyDictionary()


def verdict() -> Verdict:
    """Of the default group as it is now; empty: nothing was measured."""
    if world_size() == 1:
        return {}
    return dict(_verdicts.get(_group(), {}))


def _group() -> Any:
    return torch.distributed.group.WORLD


def look_at_collectives(backend: object, spare_bytes: int) -> None:
    """Measures and judges, once for each group. Collective: every rank calls it.

    Args:
        spare_bytes: what a step will take anyway: no more is taken here, so that no peak rises.
    """
    if world_size() == 1 or not isinstance(backend, Judge) or not fits(backend.device):
        return
    group = _group()
    if group in _verdicts:
        return
    _verdicts[group] = {}
    ring = _open_ring(backend, spare_bytes)
    entries = gather({"gpu": backend.gpu, "takes_part": ring is not None})
    if ring is not None and all(entry["takes_part"] for entry in entries):
        _verdicts[group] = judged(backend, ring, [str(entry["gpu"]) for entry in entries])


def _open_ring(backend: Judge, spare_bytes: int) -> JobRing | None:
    """None: nothing is promised to this rank's GPU, or there is no room to measure with."""
    if spare_bytes < 2 * LARGEST or _promised(backend, [backend.gpu]) <= 0:
        return None
    try:
        return JobRing(backend.device, LARGEST)
    except RuntimeError:  # Out of memory.
        return None


def _promised(backend: Judge, gpus: list[str]) -> float:
    return float(backend.judge_collectives(gpus, [])["promised_bytes_per_second"])


def judged(
    backend: Judge, ring: Ring, gpus: list[str], clock: Callable[[], float] = time.monotonic
) -> Verdict:
    """Rank 0's verdict, on all ranks; what is unfit is said by rank 0.

    Empty where nothing is promised: that is judged first, and then nothing is measured.
    """
    is_first = ring.rank == 0
    if not ring.first(is_first and _promised(backend, gpus) > 0):
        return {}

    def failed(kind: str, what: str, waits: bool) -> None:
        if is_first:
            unfit = backend.judge_collectives(gpus, [{"kind": kind, "error": what}])["unfit"][0]
            waiting = (
                f"{unfit['cause']}; {unfit['remedy']}. It is waited for: whatever comes after it "
                "in this group would wait as well"
            )
            tell(waiting + "." if waits else str(unfit["sentence"]))

    measured = measure(ring, clock, failed)
    found: Verdict = {}
    if is_first and measured:
        found = backend.judge_collectives(gpus, [asdict(one) for one in measured])
        for unfit in found["unfit"]:
            tell(str(unfit["sentence"]))
    answer: Verdict = ring.first(found)
    return answer


def measure(ring: Ring, clock: Callable[[], float], failed: Failed) -> list[Measured]:
    """An all-reduce and a send/recv, each with more bytes for as long as there is time.

    After each one the ranks agree on how long it took and how much time is gone, so that all of
    them go on or stop together. What cannot be measured in time is left out.

    Args:
        failed: told of the first that is not done in time (and is waited for), and of one that
            ends with an error, which is raised.
    """
    return _Measurement(ring, clock, failed).run()


class _Measurement:
    def __init__(self, ring: Ring, clock: Callable[[], float], failed: Failed) -> None:
        self._ring = ring
        self._clock = clock
        self._failed = failed
        self._began = clock()
        self._told = False
        self._elapsed = 0.0  # As agreed.

    def run(self) -> list[Measured]:
        all_reduce = self._largest("all-reduce", self._ring.all_reduce, LIMIT_S / 2)
        send_receive = self._largest("send-receive", self._ring.send_receive, LIMIT_S)
        return [found for found in (all_reduce, send_receive) if found is not None]

    def _largest(self, kind: str, start: Callable[[int], Pending], until: float) -> Measured | None:
        self._once(kind, start, SMALLEST)  # Connections are made in it: no measure of anything.
        best: Measured | None = None
        nbytes, expected = SMALLEST, 0.0
        while self._elapsed + expected <= until:
            seconds = math.inf
            for _ in range(_ROUNDS):
                if self._elapsed + expected > until:
                    break
                seconds = min(seconds, self._once(kind, start, nbytes))
                expected = seconds
            best = Measured(kind, nbytes, seconds)
            if nbytes == LARGEST:
                break
            larger = min(nbytes * _GROWTH, LARGEST)
            nbytes, expected = larger, seconds * larger / nbytes
        # Few bytes in little time tell of latency, not of the link.
        counts = best is not None and (best.bytes >= ENOUGH or best.seconds >= _NO_LATENCY_S)
        return best if counts else None

    def _once(self, kind: str, start: Callable[[int], Pending], nbytes: int) -> float:
        """Seconds of the slowest rank."""
        try:
            at = self._clock()
            self._finish(kind, start(nbytes))
            now = self._clock()
            agreed = self._ring.agree([now - at, now - self._began])
            self._finish(kind, agreed)
        except RuntimeError as error:
            self._failed(kind, f"{kind} of {self._ring.size} ranks: {error}", False)
            raise
        seconds, self._elapsed = agreed.values()
        return max(seconds, 1e-9)

    def _finish(self, kind: str, pending: Pending) -> None:
        """Waits to its end: a collective that was given up would block all that come after it."""
        left = PATIENCE_S - (self._clock() - self._began)
        if pending.wait(max(left, _LEAST_PATIENCE_S)):
            return
        if not self._told:
            self._told = True
            spent = self._clock() - self._began
            what = f"{kind} of {self._ring.size} ranks: not done {spent:.1f} s after the start"
            self._failed(kind, what, True)
        pending.wait(None)
