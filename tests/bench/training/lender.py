"""What copies at full rate cost the compute beside them: the lender's, and the borrower's own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from hyperframes import _native

from .measure import timing_event

CHUNK = 256 << 20
SHORTEST_S = 0.03  # Of compute in one measurement.
_PAIRS = 5
_FASTEST = 450e9  # Bytes per second that no link of today reaches in one direction.


class Copies(Protocol):
    """Copies at full rate that compute is timed beside."""

    def put(self) -> int:
        """Starts copies to the lender. Returns bytes."""

    def fetch(self, passes: int = 1) -> int:
        """Starts copies back, so many times. Returns bytes."""

    def passes_for(self, seconds: float) -> int:
        """Of fetches that last so long, and half as long again, on the fastest of links."""

    def finish(self) -> None:
        """Waits for the last copy under way."""

    def drop(self) -> None:
        """Gives back what the copies took."""


class Borrower:
    """An engine on one GPU whose lease is on another."""

    def __init__(self, device: torch.device, lender: int, chunks: int) -> None:
        machine = _native.Machine({"backend": "cuda", "gpu_index": device.index or 0})
        gpus = [d["uuid"] for d in machine.describe()["devices"] if not d.get("is_host")]
        self._lender = gpus[lender]
        options = {
            "gpu": gpus[device.index or 0],
            "stash_limit": 1 << 50,
            "prefetch_limit": 1 << 50,
            "leases": [
                {"device": self._lender, "tier": "TIER_PEER", "bytes": chunks * CHUNK}
            ],
        }  # fmt: skip
        self._engine = _native.NativeEngine(machine, options)
        self._device = device
        self._buffer = torch.empty(CHUNK, dtype=torch.uint8, device=device)
        self._chunks = chunks
        self._handles: list[int] = []
        self._fetched = False

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream

    def put(self) -> int:
        """Starts copies of all chunks to the lender. Returns bytes."""
        with torch.cuda.device(self._device):
            for index in range(self._chunks):
                placed = self._engine.put(
                    0, 0, index, self._buffer.data_ptr(), CHUNK, 1, self._lender, -1,
                    self._stream(),
                )  # fmt: skip
                assert placed.handle, "the lease holds every chunk"
                self._handles.append(placed.handle)
        return self._chunks * CHUNK

    def fetch(self, passes: int = 1) -> int:
        """Starts copies of all chunks back, so many times. Returns bytes."""
        with torch.cuda.device(self._device):
            for handle in self._handles * passes:
                self._engine.fetch(handle, self._buffer.data_ptr(), False, self._stream())
        self._fetched = True
        return passes * self._chunks * CHUNK

    def passes_for(self, seconds: float) -> int:
        """Of fetches that last so long, and half as long again, on the fastest of links."""
        return passes_for(seconds, self._chunks)

    def finish(self) -> None:
        """Waits for the last copy under way."""
        with torch.cuda.device(self._device):
            self._engine.take_releasable(0, self._stream())
            if self._fetched:
                for handle in self._handles:
                    self._engine.wait(handle, self._stream())
        torch.cuda.synchronize(self._device)

    def drop(self) -> None:
        """Gives all slots back."""
        for handle in self._handles:
            self._engine.drop(handle)
        self._handles.clear()
        self._fetched = False

    def close(self) -> None:
        self._engine.close()


def passes_for(seconds: float, chunks: int) -> int:
    """Of fetches of so many chunks; see Borrower."""
    return 1 + int(1.5 * seconds * _FASTEST / (chunks * CHUNK))


def works(device: torch.device) -> dict[str, tuple[Callable[[], Any], float]]:
    """Compute by name, with the bytes of memory that one call has to touch."""
    half = {"device": device, "dtype": torch.bfloat16}
    a, b = torch.randn(8192, 8192, **half), torch.randn(8192, 8192, **half)  # type: ignore[call-overload]
    wide = torch.randn(256 << 20, **half)  # type: ignore[call-overload]
    out = torch.empty_like(wide)
    q = torch.randn(1, 32, 8192, 128, **half)  # type: ignore[call-overload]
    size = 2.0 * wide.numel()
    return {  # The one that is bound by memory first.
        "elementwise": (lambda: torch.mul(wide, 1.5, out=out), 2 * size),
        "matmul": (lambda: a @ b, 3 * 2.0 * a.numel()),
        "attention": (
            lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
            4 * 2.0 * q.numel(),
        ),
    }


def measure_lender(
    borrower: torch.device, lender: torch.device, say: Callable[[str], None], chunks: int = 96
) -> Iterator[dict[str, Any]]:
    """A row per kind of compute and direction: the slow-down, and how much of it the copies explain
    by the share of the memory's bandwidth that they take from work which needs all of it."""
    engine = Borrower(borrower, lender.index or 1, chunks)
    kinds = works(lender)
    bandwidth = 0.0  # What the lender's memory does for the work that waits for nothing else.
    for name, (work, touched) in kinds.items():
        alone_s = seconds_alone(work, lender)
        bandwidth = max(bandwidth, touched / alone_s)
        repeats = max(1, round(SHORTEST_S / alone_s))
        for direction in ("put", "fetch"):
            share, rate = beside_copies(engine, direction, work, lender, repeats)
            row = {
                "part": "lender", "length": 0, "mode": f"{name}_while_others_{direction}",
                "slowdown": share, "copy_gb_per_s": rate / 1e9,
                "own_traffic_gb_per_s": touched / alone_s / 1e9,
                "memory_gb_per_s": bandwidth / 1e9, "explained": rate / (bandwidth - rate),
            }  # fmt: skip
            say(
                f"  {row['mode']:<32} slower by {share:+.2%}; copies at {rate / 1e9:.0f} GB/s of"
                f" {bandwidth / 1e9:.0f} explain {row['explained']:.2%}"
            )
            yield row
    engine.close()


def seconds_alone(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call."""
    _timed(work, device, 3)  # Loads kernels and libraries.
    return _timed(work, device, 5) / 5


def beside_copies(
    engine: Copies,
    direction: str,
    work: Callable[[], Any],
    device: torch.device,
    repeats: int,
) -> tuple[float, float]:
    """How much longer work on ``device`` takes beside copies, against the same work alone just
    before (0.1: a tenth), and the copies' bytes per second. RuntimeError: the copies ended first.
    """
    _timed(work, device, 1)
    shares, rates = [], []
    for _ in range(_PAIRS):
        alone = _timed(work, device, repeats)
        loaded, rate = _loaded(engine, direction, work, device, repeats, alone)
        shares.append(loaded / alone - 1)
        rates.append(rate)
    return statistics.median(shares), statistics.median(rates)


def _timed(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    with torch.cuda.device(device):
        first, last = (timing_event() for _ in range(2))
        first.record()
        for _ in range(repeats):
            work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3


def _loaded(
    engine: Copies,
    direction: str,
    work: Callable[[], Any],
    device: torch.device,
    repeats: int,
    alone_s: float,
) -> tuple[float, float]:
    torch.cuda.synchronize(device)
    if direction == "fetch":
        engine.put()
        engine.finish()
    begin = time.perf_counter()
    nbytes = engine.put() if direction == "put" else engine.fetch(engine.passes_for(alone_s))
    loaded = _timed(work, device, repeats)
    computed = time.perf_counter()
    engine.finish()
    ended = time.perf_counter()
    engine.drop()
    if ended - computed < 0.0005:
        raise RuntimeError(f"the copies ended before {1e3 * loaded:.0f} ms of compute did")
    return loaded, nbytes / (ended - begin)
