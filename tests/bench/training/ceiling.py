"""What copies beside it cost a block's compute, and the throughput that they leave at best."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .measure import timing_event
from .workload import FineTune

_CHUNK = 256 << 20
_PAIRS = 5


@dataclass(frozen=True)
class Slowdown:
    """Of compute while copies run: 0.1 is a tenth longer. ``rate``: bytes per second of the copies
    meanwhile."""

    share: float
    rate: float

    def seconds_lost(self, nbytes: float) -> float:
        """Of compute, while so many bytes are copied beside it: in a second of copying compute
        does the work of 1 / (1 + share) seconds."""
        share = max(0.0, self.share)
        return nbytes / self.rate * share / (1 + share)


@dataclass(frozen=True)
class Ceiling:
    """Of a mode that moves everything it does not keep, and hides every copy."""

    push: Slowdown
    fetch: Slowdown

    def versus_nothing(self, nothing_s: float, nbytes: float) -> float:
        """The best throughput relative to nothing's, when ``nbytes`` go out and come back in a step
        that takes ``nothing_s`` without copies."""
        lost = self.push.seconds_lost(nbytes) + self.fetch.seconds_lost(nbytes)
        return nothing_s / (nothing_s + lost)

    def figures(self) -> dict[str, Any]:
        return {
            "push_slowdown": self.push.share,
            "push_gb_per_s": self.push.rate / 1e9,
            "fetch_slowdown": self.fetch.share,
            "fetch_gb_per_s": self.fetch.rate / 1e9,
        }


def measure_ceiling(workload: FineTune, device: torch.device, lender: torch.device) -> Ceiling:
    """A block's forward under pushes to the lender and its backward under fetches, in pairs with
    the same compute alone. Both are driven by this GPU."""
    block = workload.blocks()[0]
    given = workload.batch().detach()
    own = torch.empty(_CHUNK, dtype=torch.uint8, device=device)
    lent = torch.empty(_CHUNK, dtype=torch.uint8, device=lender)

    def forward() -> None:
        with torch.no_grad():
            block(given)

    push = under_copies(forward, lambda: lent.copy_(own, non_blocking=True), device)
    output = block(given.clone().requires_grad_())
    gradient = torch.ones_like(output)

    def backward() -> None:
        torch.autograd.backward(output, gradient, retain_graph=True)

    fetch = under_copies(backward, lambda: own.copy_(lent, non_blocking=True), device)
    workload.model.zero_grad(set_to_none=True)
    return Ceiling(push, fetch)


def under_copies(
    compute: Callable[[], None],
    copy: Callable[[], Any],
    device: torch.device,
    *,
    chunk: int = _CHUNK,
    least_s: float = 0.05,
) -> Slowdown:
    """Times ``compute`` alone and beside copies on a stream of their own, in turns.

    Raises:
        RuntimeError: the copies ended before the compute beside them did.
    """
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copies(count: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        marks = [timing_event() for _ in range(2)]
        with torch.cuda.stream(side):
            marks[0].record()
            for _ in range(count):
                copy()
            marks[1].record()
        return marks[0], marks[1]

    def timed(repeats: int) -> tuple[float, torch.cuda.Event]:
        marks = [timing_event() for _ in range(2)]
        marks[0].record()
        for _ in range(repeats):
            compute()
        marks[1].record()
        marks[1].synchronize()
        return marks[0].elapsed_time(marks[1]) / 1e3, marks[1]

    timed(2)
    first, last = copies(8)
    torch.cuda.synchronize(device)
    copy_s = first.elapsed_time(last) / 1e3 / 8
    repeats = max(1, round(least_s / timed(1)[0]))
    shares, rates = [], []
    count = 0
    for _ in range(_PAIRS):
        torch.cuda.synchronize(device)
        alone, _ = timed(repeats)
        count = max(count, int(alone * 1.6 / copy_s) + 2)
        first, last = copies(count)
        loaded, ended = timed(repeats)
        torch.cuda.synchronize(device)
        if ended.elapsed_time(last) < 0:
            raise RuntimeError(f"{count} copies ended before the compute beside them")
        shares.append(loaded / alone - 1)
        rates.append(count * chunk / (first.elapsed_time(last) / 1e3))
    return Slowdown(statistics.median(shares), statistics.median(rates))
