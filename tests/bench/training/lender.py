"""How much a lender's own compute slows down while another GPU puts and fetches at full rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from hyperframes import _native

from .measure import timing_event

_CHUNK = 256 << 20
_SHORTEST_S = 0.03  # Of compute in one measurement.
_PAIRS = 5


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
                {"device": self._lender, "tier": "TIER_PEER", "bytes": chunks * _CHUNK}
            ],
        }  # fmt: skip
        self._engine = _native.NativeEngine(machine, options)
        self._device = device
        self._buffer = torch.empty(_CHUNK, dtype=torch.uint8, device=device)
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
                    0, 0, index, self._buffer.data_ptr(), _CHUNK, 1, self._lender, -1,
                    self._stream(),
                )  # fmt: skip
                assert placed.handle, "the lease holds every chunk"
                self._handles.append(placed.handle)
        return self._chunks * _CHUNK

    def fetch(self) -> int:
        """Starts copies of all chunks back. Returns bytes."""
        with torch.cuda.device(self._device):
            for handle in self._handles:
                self._engine.fetch(handle, self._buffer.data_ptr(), False, self._stream())
        self._fetched = True
        return self._chunks * _CHUNK

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


def works(lender: torch.device) -> dict[str, tuple[Callable[[], Any], float]]:
    """The lender's compute by name, with the bytes of memory that one call has to touch."""
    half = {"device": lender, "dtype": torch.bfloat16}
    a, b = torch.randn(8192, 8192, **half), torch.randn(8192, 8192, **half)  # type: ignore[call-overload]
    wide = torch.randn(256 << 20, **half)  # type: ignore[call-overload]
    out = torch.empty_like(wide)
    q = torch.randn(1, 32, 8192, 128, **half)  # type: ignore[call-overload]
    size = 2.0 * wide.numel()
    return {
        "matmul": (lambda: a @ b, 3 * 2.0 * a.numel()),
        "elementwise": (lambda: torch.mul(wide, 1.5, out=out), 2 * size),
        "attention": (
            lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
            4 * 2.0 * q.numel(),
        ),
    }


def measure_lender(
    borrower: torch.device, lender: torch.device, say: Callable[[str], None], chunks: int = 96
) -> list[dict[str, Any]]:
    """A row per kind of compute and direction: the slow-down, and the share of the lender's memory
    traffic that the copies are."""
    engine = Borrower(borrower, lender.index or 1, chunks)
    rows = []
    for name, (work, touched) in works(lender).items():
        alone_s = _timed(work, lender, 3) / 3
        repeats = max(1, round(_SHORTEST_S / alone_s))
        for direction in ("put", "fetch"):
            shares, rates = [], []
            for _ in range(_PAIRS):
                alone = _timed(work, lender, repeats)
                loaded, rate = _loaded(engine, direction, work, lender, repeats)
                shares.append(loaded / alone - 1)
                rates.append(rate)
            rate = sorted(rates)[_PAIRS // 2]
            traffic = touched / alone_s
            row = {
                "part": "lender", "length": 0, "mode": f"{name}_while_others_{direction}",
                "slowdown": sorted(shares)[_PAIRS // 2], "slowdowns": shares,
                "copy_gb_per_s": rate / 1e9, "own_traffic_gb_per_s": traffic / 1e9,
                "explained": rate / (rate + traffic),
            }  # fmt: skip
            rows.append(row)
            say(
                f"  {row['mode']:<32} slower by {row['slowdown']:+.2%}, copies at"
                f" {row['copy_gb_per_s']:.0f} GB/s are {row['explained']:.1%} of the traffic"
            )
    engine.close()
    return rows


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
    engine: Borrower, direction: str, work: Callable[[], Any], lender: torch.device, repeats: int
) -> tuple[float, float]:
    """Seconds of the work beside copies, and the copies' bytes per second."""
    torch.cuda.synchronize(lender)
    if direction == "fetch":
        engine.put()
        engine.finish()
    begin = time.perf_counter()
    nbytes = engine.put() if direction == "put" else engine.fetch()
    loaded = _timed(work, lender, repeats)
    computed = time.perf_counter()
    engine.finish()
    ended = time.perf_counter()
    engine.drop()
    if ended - computed < 0.001:
        raise RuntimeError("the copies ended before the compute beside them")
    return loaded, nbytes / (ended - begin)
