"""Which GPU of two should drive a copy between them: what each way costs the borrower's compute.

A copy runs on the engines of the GPU whose stream it is queued on. HyperFrames queues copies on the
borrower's; on the lender's they would need a context there, about 0.5 GB of what it could lend.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .lender import CHUNK, SHORTEST_S, Copies, beside_copies, passes_for, seconds_alone, works

_CHUNKS = 96
_WORKS = ("elementwise", "matmul")


class PlainCopies:
    """The driver's own copies between two GPUs, on a stream of ``driver``, one of the two."""

    def __init__(self, borrower: torch.device, lender: torch.device, driver: torch.device) -> None:
        self._here = torch.zeros(CHUNK, dtype=torch.uint8, device=borrower)
        self._there = self._here.to(lender)  # torch opens the way between the two.
        self._stream = torch.cuda.Stream(driver)  # type: ignore[no-untyped-call]
        self._copy = ctypes.CDLL("libcuda.so.1").cuMemcpyAsync
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._copy.restype = ctypes.c_int
        for gpu in (borrower, lender):
            torch.cuda.synchronize(gpu)

    def put(self) -> int:
        """Starts copies to the lender. Returns bytes."""
        return self._start(self._there, self._here, _CHUNKS)

    def fetch(self, passes: int = 1) -> int:
        """Starts copies back. Returns bytes."""
        return self._start(self._here, self._there, passes * _CHUNKS)

    def _start(self, to: torch.Tensor, source: torch.Tensor, count: int) -> int:
        with torch.cuda.device(self._stream.device):
            for _ in range(count):
                code = self._copy(to.data_ptr(), source.data_ptr(), CHUNK, self._stream.cuda_stream)
                if code:
                    raise RuntimeError(f"cuMemcpyAsync between two GPUs failed with {code}")
        return count * CHUNK

    def passes_for(self, seconds: float) -> int:
        """See Copies."""
        return passes_for(seconds, _CHUNKS)

    def finish(self) -> None:
        """Waits for the last copy."""
        self._stream.synchronize()

    def drop(self) -> None:
        """There is nothing to give back."""


def measure_drivers(
    borrower: torch.device,
    lender: torch.device,
    say: Callable[[str], None],
    make: Callable[[torch.device, torch.device, torch.device], Copies] = PlainCopies,
) -> Iterator[dict[str, Any]]:
    """A row per kind of the borrower's compute, direction and driver: the slow-down, and how fast
    the copies were."""
    kinds = works(borrower)
    for driver, word in ((borrower, "borrower"), (lender, "lender")):
        copies = make(borrower, lender, driver)
        for name in _WORKS:
            work = kinds[name][0]
            repeats = max(1, round(SHORTEST_S / seconds_alone(work, borrower)))
            for direction in ("put", "fetch"):
                share, rate = beside_copies(copies, direction, work, borrower, repeats)
                mode = f"{name}_while_own_{direction}_driven_by_{word}"
                say(f"  {mode:<48} slower by {share:+.2%}; copies at {rate / 1e9:.0f} GB/s")
                yield {
                    "part": "lender", "length": 0, "mode": mode, "slowdown": share,
                    "copy_gb_per_s": rate / 1e9,
                }  # fmt: skip
