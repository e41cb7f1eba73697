"""The engine's own copies between a GPU and lent memory, to measure with; and CUDA's clock."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from ._backend import EmbeddedBackend
from ._engine import HOST, PEER, TIER_NAMES
from .errors import FailedPrecondition

_SLOTS = 2  # Of a lease: what comes back has one, what goes out the other.
_NO_LIMIT = 1 << 50
_MOST_COPIES = 20_000


class LaneCopies:
    """Copies as a step has them: by an engine, in its lanes. Not thread-safe.

    Args:
        nbytes: of one copy, and of the device memory that all of them use.

    Raises:
        HyperFramesError: the machine cannot be opened, or its memory not be lent.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device = device
        self._bytes = nbytes // 512 * 512
        backend = EmbeddedBackend(device, quiet=True)
        found = backend.describe()
        self._rates = {
            str(link["to"]): float(link["bytes_per_second"])
            for link in found.get("links", ())
            if link["from"] == backend.gpu
        }
        self._lenders: dict[str, str] = {}
        for lender in found["devices"]:
            tier = TIER_NAMES[HOST if lender.get("is_host") else PEER]
            fits = int(lender.get("lendable_bytes", 0)) >= _SLOTS * self._bytes
            known = self._rates.get(str(lender["uuid"]), 0.0) > 0
            if fits and known and lender["uuid"] != backend.gpu:
                self._lenders.setdefault(tier, str(lender["uuid"]))
        leases = [
            {"device": uuid, "tier": f"TIER_{tier.upper()}", "bytes": _SLOTS * self._bytes}
            for tier, uuid in self._lenders.items()
        ]
        plan = {"leases": leases, "stash_limit": _NO_LIMIT, "prefetch_limit": _NO_LIMIT}
        self._engine = backend.open_engine(plan, {"measures_only": True})
        self._buffer = torch.empty(self._bytes, dtype=torch.uint8, device=device)
        self._seeds: dict[str, int] = {}  # What comes back, by tier.
        self._fetched: set[str] = set()
        for tier in self._lenders:  # Once either way: lanes and events are there from now on.
            self._seeds[tier] = self._put(tier)
            self.start(tier, "back", 0.0)
        self.join()

    @property
    def tiers(self) -> Sequence[str]:
        return list(self._lenders)

    def _stream(self) -> int:
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def _put(self, tier: str) -> int:
        placed = self._engine.put(
            0, 0, 0, self._buffer.data_ptr(), self._bytes, TIER_NAMES.index(tier),
            self._lenders[tier], -1, self._stream(),
        )  # fmt: skip
        if not placed.handle or placed.overflow:
            raise FailedPrecondition(f"a copy to {self._lenders[tier]} had no room in its lease.")
        return placed.handle

    def start(self, tier: str, direction: str, seconds: float) -> None:
        needed = seconds * self._rates[self._lenders[tier]] / self._bytes
        for _ in range(min(_MOST_COPIES, 1 + math.ceil(needed))):
            if direction == "out":
                # The lane keeps its order, so the next copy may go to the same slot at once.
                self._engine.drop(self._put(tier))
            else:
                self._engine.fetch(
                    self._seeds[tier], self._buffer.data_ptr(), False, self._stream()
                )
                self._fetched.add(tier)

    def join(self) -> None:
        self._engine.take_releasable(0, self._stream())
        for tier in self._fetched:
            self._engine.wait(self._seeds[tier], self._stream())
        self._fetched.clear()

    def close(self) -> None:
        for handle in self._seeds.values():
            self._engine.drop(handle)
        self._engine.close()


class CudaTimer:
    """Events on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, first: Any, last: Any) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def drain(self) -> None:
        torch.cuda.synchronize(self._device)

    def now(self) -> float:
        return time.perf_counter()

    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))
