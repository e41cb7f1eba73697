"""What copies beside it cost a block's compute, and the throughput that they leave at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .lender import Borrower, beside_copies
from .workload import FineTune

_CHUNKS = 160  # Of 256 MiB: 110 ms at the full rate, longer than a block's forward at 32K.


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


def measure_ceiling(workload: FineTune, device: torch.device, lender: int) -> Ceiling:
    """A block's forward under pushes to the lender and its backward under fetches, by the engine of
    HyperFrames, in pairs with the same compute alone. RuntimeError: copies ended too early."""
    block = workload.blocks()[0]
    given = workload.batch().detach()
    engine = Borrower(device, lender, _CHUNKS)

    def forward() -> None:
        with torch.no_grad():
            block(given)

    try:
        push = Slowdown(*beside_copies(engine, "put", forward, device, 1))
        output = block(given.clone().requires_grad_())
        gradient = torch.ones_like(output)

        def backward() -> None:
            torch.autograd.backward(output, gradient, retain_graph=True)

        fetch = Slowdown(*beside_copies(engine, "fetch", backward, device, 1))
    finally:
        engine.close()
        workload.model.zero_grad(set_to_none=True)
    return Ceiling(push, fetch)
