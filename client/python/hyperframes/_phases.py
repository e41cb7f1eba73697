"""What a block's backward holds while it runs: what it reads when, and what comes on top."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from ._blocks import Ledger, Record
from .profile import PhaseInfo


@dataclass
class _Phase:
    reads: int
    in_use: int
    unread: int
    peak: int = 0


class PhaseRecorder:
    """Follows one backward of one block from its unpack hook. Not thread-safe: one backward.

    A storage that was read counts until its memory is given back, which is when the last node that
    saved it has run. On CUDA the allocator tells what else was there; elsewhere nothing does, and
    a phase's working bytes are then those in use.
    """

    def __init__(self, ledger: Ledger, block: str, device: torch.device, allocated: int) -> None:
        """``allocated``: bytes on the device before the block's forward."""
        self._ledger = ledger
        self._block = block
        self._device = device
        self._before = allocated
        self._bytes: dict[int, int] = {}
        self._read: dict[int, Record] = {}
        self._phases: list[_Phase] = []

    def begin(self, storages: Iterable[tuple[int, int]], apart: int) -> None:
        """Backward begins.

        Args:
            storages: ordinal and bytes of what the block has saved, its inputs apart.
            apart: bytes alive now that are not alive then in a training step: the block's output,
                which by then belonged to the next block.
        """
        self._bytes = dict(storages)
        self._before += apart
        self._open(-1)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The unpack hook."""
        if self._phases and tensor.layout is torch.strided and tensor.device == self._device:
            record = self._ledger.find(tensor.untyped_storage())
            if record is not None and record.block == self._block:
                ordinal = record.ordinal
                if ordinal in self._bytes and ordinal not in self._read:
                    self._close()
                    self._read[ordinal] = record
                    self._open(ordinal)
        return tensor

    def finish(self, foreign: int = 0) -> list[PhaseInfo]:
        """The phases in order; none when backward never began.

        Args:
            foreign: bytes of other blocks' storages that this backward reads too. Where they were
                moved they come back for it, nobody knows when.
        """
        if not self._phases:
            return []
        self._close()
        found = []
        for phase in self._phases:
            working = phase.in_use
            if self._device.type == "cuda":
                working = max(working, phase.peak - self._before - phase.unread)
            found.append(PhaseInfo(phase.reads, phase.in_use + foreign, working + foreign))
        return found

    def _open(self, ordinal: int) -> None:
        in_use = sum(self._bytes[n] for n, record in self._read.items() if record() is not None)
        unread = sum(nbytes for n, nbytes in self._bytes.items() if n not in self._read)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._phases.append(_Phase(ordinal, in_use, unread))

    def _close(self) -> None:
        if self._device.type == "cuda":
            self._phases[-1].peak = int(torch.cuda.max_memory_allocated(self._device))


def bytes_beyond(output: Any, inputs: Iterable[Any], ledger: Ledger) -> int:
    """Bytes of a block's output that are neither its inputs nor saved by it."""
    known = {tensor.untyped_storage()._cdata for tensor in inputs if _has_storage(tensor, ledger)}
    beyond: dict[int, int] = {}
    for leaf in _pytree.tree_leaves(output):
        if _has_storage(leaf, ledger):
            storage = leaf.untyped_storage()
            if storage._cdata not in known and ledger.find(storage) is None:
                beyond[storage._cdata] = storage.nbytes()
    return sum(beyond.values())


def _has_storage(value: Any, ledger: Ledger) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device == ledger.device
    )
