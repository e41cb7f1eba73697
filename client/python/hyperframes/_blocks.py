"""Which modules are blocks, and in which order their storages are saved.

Profile and training walk the same code here, so that "the third storage of layers.5" means the
same in both. Every block has the tensors that it is given as ordinals 0..k-1, saved or not; what it
saves beyond them follows in the order of saving. A storage belongs to the block that first had it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._meter import ParameterStorages
from .errors import InvalidArgument

REST = "rest"  # Saved in the model's forward, outside every block.
LOSS = "loss"  # Saved outside the model's forward.
MIN_MOVABLE = 4096  # Bytes: below, a copy costs more than it frees.

_LISTS = (nn.ModuleList, nn.ModuleDict)


def _is_stack(module: nn.Module) -> bool:
    """A list of layers: ModuleList, or a Sequential that repeats one class of non-leaf modules."""
    if isinstance(module, _LISTS):
        return len(module) > 0
    if isinstance(module, nn.Sequential):
        kinds = [type(child) for child in module if any(True for _ in child.children())]
        return len(kinds) > 1 and len(set(kinds)) == 1
    return False


def holds_stack(module: nn.Module) -> bool:
    """A list of layers is somewhere inside."""
    return any(_is_stack(child) for child in module.modules())


def _visit(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in module.named_children():
        full = f"{name}.{child_name}" if name else child_name
        if _is_stack(child):
            for index, layer in child.named_children():
                # A list of lists is descended; a layer with a list of experts inside is one block.
                if _is_stack(layer):
                    yield from _visit(layer, f"{full}.{index}")
                else:
                    yield f"{full}.{index}", layer
        elif holds_stack(child):
            yield from _visit(child, full)
        else:
            yield full, child


def discover_blocks(model: nn.Module, names: Iterable[str] | None = None) -> dict[str, nn.Module]:
    """Blocks by dotted name, disjoint, each module once.

    Args:
        model: the root module, wrapped (DDP, FSDP) or not.
        names: dotted names given by the user; every other part of the model is found as usual.

    Raises:
        InvalidArgument: a name that the model does not have, or one block inside another.
    """
    found: dict[str, nn.Module] = {}
    chosen = list(names or ())
    modules = dict(model.named_modules())
    for name in chosen:
        full = next((full for full in (name, f"module.{name}") if full in modules), None)
        if not full:
            some = ", ".join(sorted(modules)[1:6])
            raise InvalidArgument(f"blocks: the model has no module {name!r} (it has {some}, ...).")
        found[full] = modules[full]
    inside = {id(part): name for name, block in found.items() for part in block.modules()}
    for name, block in found.items():
        if inside[id(block)] != name:
            raise InvalidArgument(f"blocks: {name!r} is inside {inside[id(block)]!r}: name one.")
    taken = set(inside)
    candidates = list(_visit(model, ""))
    if not candidates:
        candidates = [(type(model).__name__, model)]
    for name, block in candidates:
        parts = {id(part) for part in block.modules()}
        if not parts & taken:
            found[name] = block
            taken |= parts
    return found


@dataclass
class BlockCall:
    """One call of a block in one forward. ``key`` is unique in the forward: "h.3", "h.3#2"."""

    key: str
    module: nn.Module | None
    next_ordinal: int = 0


class Record(weakref.ref[torch.UntypedStorage]):
    """What is known of a living storage in this forward. Weak: it never keeps the memory."""

    __slots__ = ("block", "entry", "is_input", "nbytes", "ordinal", "storage_key")
    block: str
    ordinal: int
    is_input: bool
    nbytes: int
    storage_key: int
    entry: Any  # A weak reference to the frame entry, owned by _frames.


Snapshot = tuple[dict[int, Record], dict[str, int], dict[str, int]]


@dataclass
class Ledger:
    """Gives every saved storage of a forward its (block, ordinal)."""

    device: torch.device
    _records: dict[int, Record] = field(default_factory=dict)
    _calls: dict[str, int] = field(default_factory=dict)
    _stack: list[BlockCall | None] = field(default_factory=list)
    _outside: dict[str, BlockCall] = field(default_factory=dict)
    in_root: bool = False

    def begin_forward(self) -> None:
        """Forgets the last forward: ordinals start again, blocks are called for the first time."""
        self._records.clear()
        self._calls.clear()
        self._stack.clear()
        self._outside = {REST: BlockCall(REST, None), LOSS: BlockCall(LOSS, None)}

    def snapshot(self) -> Snapshot:
        """For restore(): the same block is about to run more than once."""
        outside = {name: call.next_ordinal for name, call in self._outside.items()}
        return dict(self._records), dict(self._calls), outside

    def restore(self, snapshot: Snapshot) -> None:
        """As if the last run had not been. Storages that died meanwhile are not found again."""
        self._records, self._calls = dict(snapshot[0]), dict(snapshot[1])
        for name, ordinal in snapshot[2].items():
            self._outside[name].next_ordinal = ordinal

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> BlockCall:
        """A block is called with these arguments."""
        count = self._calls.get(name, 0) + 1
        self._calls[name] = count
        call = BlockCall(name if count == 1 else f"{name}#{count}", module)
        self._stack.append(call)
        for leaf in _pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                ordinal = call.next_ordinal
                call.next_ordinal += 1
                if leaf.layout is torch.strided and leaf.device == self.device:
                    storage = leaf.untyped_storage()
                    if self.find(storage) is None:
                        self._register(storage, call.key, ordinal, is_input=True)
        return call

    def enter_unseen(self) -> None:
        """A block is called with gradients off: nothing of it is saved."""
        self._stack.append(None)

    def leave(self, module: nn.Module) -> None:
        """The block returned or raised."""
        if self._stack:
            top = self._stack[-1]
            if top is None or top.module is module:
                self._stack.pop()

    def left_to_others(self, key: str, output: Any, ordinals: Iterable[Iterable[int]]) -> None:
        """A block that will run again returned: what others save of its output is still its own.

        Args:
            ordinals: index among the output's leaves, and the ordinal that the block would give.
        """
        leaves = _pytree.tree_leaves(output) if ordinals else []
        for index, ordinal in ordinals:
            leaf = leaves[index] if index < len(leaves) else None
            if (
                isinstance(leaf, torch.Tensor)
                and leaf.layout is torch.strided
                and leaf.device == self.device
                and self.find(leaf.untyped_storage()) is None
            ):
                self._register(leaf.untyped_storage(), key, ordinal, is_input=False)

    def current(self) -> BlockCall:
        """The block that is running; else REST inside the model, LOSS outside."""
        if self._stack and self._stack[-1] is not None:
            return self._stack[-1]
        if not self._outside:
            self.begin_forward()
        return self._outside[REST if self.in_root else LOSS]

    def current_block(self, module: nn.Module) -> BlockCall | None:
        """The running call when it is one of ``module``."""
        top = self._stack[-1] if self._stack else None
        return top if top is not None and top.module is module else None

    def find(self, storage: torch.UntypedStorage) -> Record | None:
        """The record of a living storage. Identity, never an address: addresses are used again."""
        record = self._records.get(storage._cdata)
        return record if record is not None and record() is storage else None

    def living(self) -> list[Record]:
        """Of every storage of this forward that somebody holds."""
        return [record for record in list(self._records.values()) if record() is not None]

    def classify(self, storage: torch.UntypedStorage) -> tuple[Record, bool]:
        """The storage's record, and whether it was made now."""
        record = self.find(storage)
        if record is not None:
            return record, False
        call = self.current()
        ordinal = call.next_ordinal
        call.next_ordinal += 1
        return self._register(storage, call.key, ordinal, is_input=False), True

    def _register(
        self, storage: torch.UntypedStorage, block: str, ordinal: int, *, is_input: bool
    ) -> Record:
        record: Record = Record(storage, self._forget)
        record.block, record.ordinal, record.is_input = block, ordinal, is_input
        record.nbytes, record.storage_key = storage.nbytes(), storage._cdata
        record.entry = None
        self._records[record.storage_key] = record
        return record

    def _forget(self, record: Any) -> None:
        known = self._records.get(record.storage_key)
        if known is not None and known is record:
            self._records.pop(known.storage_key, None)


def stays_reason(tensor: torch.Tensor, device: torch.device, parameters: ParameterStorages) -> str:
    """Why a saved tensor is never moved; empty when it may be.

    Kept here so that profile and training agree on it to the letter.
    """
    if tensor.layout is not torch.strided:
        return f"layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.device != device:
        return f"on {tensor.device}"
    storage = tensor.untyped_storage()
    if storage in parameters:
        return "parameter or buffer"
    if tensor.dim() == 0 or tensor.numel() == 0:
        return "scalar or empty"
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return "quantized or lazily conjugated"
    if storage.nbytes() < MIN_MOVABLE:
        return f"under {MIN_MOVABLE} bytes"
    return ""
