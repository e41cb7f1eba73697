"""What a block's backward holds while it runs: what it reads when, and what comes on top."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass
class SharedUse:
    """A storage that more than one block reads, in the backward of one of them."""

    nbytes: int
    first: int = -1  # Phase in which it is first read; -1: in none.
    last: int = -1  # The last one in which what was read of it is held.
    handles: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    again: bool = False  # Running the block again reads it too, before all else.

    def phases(self, count: int) -> list[int]:
        """Those of ``count`` phases in which it is there."""
        there = range(max(self.first, 0), self.last + 1)
        return [index for index in range(count) if index in there or (self.again and index == 0)]


Key = tuple[str, int]  # Block and ordinal.


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
        self.uses: dict[Key, SharedUse] = {}

    def given(self, record: Record) -> None:
        """The block is given another block's storage: it is read when the block runs again."""
        key = record.block, record.ordinal
        self.uses.setdefault(key, SharedUse(record.nbytes)).again = True

    def saved(self, record: Record, handle: torch.Tensor) -> None:
        """The block saved the storage; ``handle`` dies with the node that did."""
        key = record.block, record.ordinal
        found = self.uses.setdefault(key, SharedUse(record.nbytes))
        found.handles.append(weakref.ref(handle))

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
            if record is not None and record.block != self._block:
                self._use(record)
            elif record is not None:
                ordinal = record.ordinal
                if ordinal in self._bytes and ordinal not in self._read:
                    self._close()
                    self._read[ordinal] = record
                    self._open(ordinal)
                self._use(record)
        return tensor

    def _use(self, record: Record) -> None:
        use = self.uses.get((record.block, record.ordinal))
        if use is not None:
            use.last = len(self._phases) - 1
            use.first = use.last if use.first < 0 else use.first

    def finish(self) -> list[PhaseInfo]:
        """The phases in order, without other blocks' storages; none when backward never began."""
        if not self._phases:
            return []
        self._close()
        found = []
        for phase in self._phases:
            working = phase.in_use
            if self._device.type == "cuda":
                working = max(working, phase.peak - self._before - phase.unread)
            found.append(PhaseInfo(phase.reads, phase.in_use, working))
        return found

    def _open(self, ordinal: int) -> None:
        in_use = sum(self._bytes[n] for n, record in self._read.items() if record() is not None)
        unread = sum(nbytes for n, nbytes in self._bytes.items() if n not in self._read)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._phases.append(_Phase(ordinal, in_use, unread))
        for key, use in self.uses.items():
            own = self._read.get(key[1]) if key[0] == self._block else None
            held = own is not None and own() is not None
            if use.first >= 0 and (held or any(handle() is not None for handle in use.handles)):
                use.last = len(self._phases) - 1

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
