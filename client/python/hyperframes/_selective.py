"""SELECTIVE: a block that runs again in backward, but whose expensive operators do not.

In forward a dispatch mode sees every operator and puts the outputs of the chosen ones away, each in
its tier. In backward the block runs again under a mode that hands them back; everything else is
computed, and the tensors that backward asks for are collected as for RECOMPUTE.

What is put away is a shortcut and never the truth: where the two runs part, where an operator was
not the one that was planned, or where its output was written to afterwards, the operator simply
runs again. That is counted, and said once.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from ._blocks import MIN_MOVABLE
from ._engine import KEEP
from ._frames import FrameStore, Kept, Moved, version_probe
from ._inflight import ForwardToken
from ._meter import observe_everywhere, passing_hooks
from ._operators import HIDDEN_VIEW, Paused, shared_versions, tensors_in, written_by
from ._recompute import BlockRun, EnoughError, RecomputeFrame, unpack_holder
from .plan import Choice

# Where the ordinals of operators' outputs begin: those of saved tensors count from 0.
FIRST_ORDINAL = 1 << 20
_MOST_OUTPUTS = 16
_ALIGNMENT = 512
_MOST_WARNINGS = 8
_CHANGED = "an output that was put away was changed in place afterwards"
_DIVERGED = "its operators were others than in forward when it ran again"


class Output:
    """The place of one output in its block, for the engine."""

    __slots__ = ("block", "entry", "ordinal")

    def __init__(self, block: str, ordinal: int) -> None:
        self.block = block
        self.ordinal = ordinal
        self.entry: Any = None


class Caught:
    """What one operator returned, put away."""

    __slots__ = ("items", "probes", "random_state", "spec")

    def __init__(self, items: list[Any], spec: Any, random_state: Any) -> None:
        self.items = items  # Kept, Moved, or what was no tensor.
        self.spec = spec
        self.random_state = random_state
        self.probes: list[tuple[torch.Tensor, int]] = []  # Version counters of its hidden views.

    def is_stale(self) -> bool:
        """An output was changed in place since: this is no longer what the operator returned."""
        return any(probe._version != version for probe, version in self.probes) or any(
            item.tensor._version != item.version
            if isinstance(item, Kept)
            else isinstance(item, Moved) and item.probe._version != item.version
            for item in self.items
        )

    def served(self) -> Any:
        """The same values in tensors of their own, as the operator would return them."""
        leaves = []
        for item in self.items:
            if isinstance(item, Kept):
                leaves.append(item.tensor.detach())
            else:
                leaves.append(item.unpack() if isinstance(item, Moved) else item)
        return _pytree.tree_unflatten(leaves, self.spec)


class Shelf(NamedTuple):
    """Where a forward puts outputs away."""

    store: FrameStore | None  # None: everything stays.
    device: torch.device
    micro_batch: int
    block_index: int
    token: ForwardToken | None

    def put(self, block: str, choice: Choice, output: Any) -> Caught | None:
        """None: the output is no plain tensor of this device, so it cannot be handed back."""
        leaves, spec = _pytree.tree_flatten(output)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not all(is_plain(tensor, self.device) for tensor in tensors):
            return None
        offset = choice.preferred_offset
        items: list[Any] = []
        with shared_versions():
            for index, leaf in enumerate(leaves):
                if not isinstance(leaf, torch.Tensor):
                    items.append(leaf)
                    continue
                packed = self._pack(block, choice, index, leaf, offset)
                items.append(packed)
                if isinstance(packed, Moved) and offset >= 0:
                    offset += -(-packed.entry.nbytes // _ALIGNMENT) * _ALIGNMENT
        state = random_state(self.device) if choice.random else None
        return Caught(items, spec, state)

    def _pack(
        self, block: str, choice: Choice, index: int, tensor: torch.Tensor, offset: int
    ) -> Kept | Moved:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            observe_everywhere(storage)
        moved = None
        if self.store is not None and choice.tier != KEEP and storage.nbytes() >= MIN_MOVABLE:
            ordinal = FIRST_ORDINAL + choice.ordinal * _MOST_OUTPUTS + index % _MOST_OUTPUTS
            moved = self.store.move(
                tensor,
                Output(block, ordinal),
                micro_batch=self.micro_batch,
                block_index=self.block_index,
                tier=choice.tier,
                lender=choice.device,
                preferred_offset=offset,
                reader=block,
            )
        if moved is None:
            return Kept(tensor, self.token)
        moved.token = self.token
        return moved


def is_plain(tensor: torch.Tensor, device: torch.device) -> bool:
    """Nothing but bytes over a storage of this device."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device == device
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def random_state(device: torch.device) -> Any:
    """Of the generators that operators on this device draw from."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def _advance(state: Any, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


@dataclass
class SelectiveCounts:
    """What was handed back, and why something was not."""

    served: int = 0
    stale: int = 0  # Outputs that were changed in place after they were put away.
    unlike_profile: int = 0  # Other operators or sizes than planned for.
    diverged: int = 0  # Recomputations that took another path than their forward.

    def __post_init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def say(self, block: str, reason: str) -> None:
        """Once for each, and not often."""
        if (block, reason) not in self._said and len(self._said) < _MOST_WARNINGS:
            self._said.add((block, reason))
            warnings.warn(
                f"HyperFrames: block {block} is SELECTIVE, but {reason}: what is affected runs "
                "again in backward instead. Results are the same; steps take longer than planned.",
                stacklevel=2,
            )


class Catching(Paused):  # type: ignore[no-untyped-call]
    """Forward: puts the outputs of the chosen operators away."""

    def __init__(
        self, block: str, choices: Mapping[int, Choice], shelf: Shelf, counts: SelectiveCounts
    ) -> None:
        super().__init__()
        self.sequence: list[Any] = []
        self.caught: dict[int, Caught] = {}
        # Storages of what was caught: who writes to one, by whatever view, makes it stale.
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._block = block
        self._choices = choices
        self._shelf = shelf
        self._counts = counts

    def operator(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if self._storages:
            for tensor in written_by(func, args, kwargs):
                self._forget(tensor.untyped_storage())
        output = func(*args, **kwargs)
        position = len(self.sequence)
        self.sequence.append(func)
        if func is HIDDEN_VIEW:
            self._watch(output)
        choice = self._choices.get(position)
        if choice is not None:
            caught = self._put(choice, func, output)
            if caught is None:
                self._counts.unlike_profile += 1
                why = f"its operator {position} was not {choice.op} as profiled"
                self._counts.say(self._block, why)
            else:
                self.caught[position] = caught
                for tensor in tensors_in(output):
                    storage = tensor.untyped_storage()
                    self._storages[storage._cdata] = weakref.ref(storage), position
        return output

    def _position(self, storage: torch.UntypedStorage) -> int | None:
        known = self._storages.get(storage._cdata)
        return known[1] if known is not None and known[0]() is storage else None

    def _forget(self, storage: torch.UntypedStorage) -> None:
        """Somebody is about to write to it."""
        position = self._position(storage)
        if position is not None and self.caught.pop(position, None) is not None:
            self._counts.stale += 1
            self._counts.say(self._block, _CHANGED)

    def _watch(self, view: torch.Tensor) -> None:
        position = self._position(view.untyped_storage())
        caught = self.caught.get(position) if position is not None else None
        if caught is not None:
            with shared_versions():
                caught.probes.append((version_probe(view), view._version))

    def _put(self, choice: Choice, func: Any, output: Any) -> Caught | None:
        if str(func) != choice.op or padded_bytes(output) > choice.nbytes:
            return None
        return self._shelf.put(self._block, choice, output)


def padded_bytes(output: Any) -> int:
    """Bytes of an operator's outputs that may move, each but the last padded to a slot."""
    total = 0
    for tensor in tensors_in(output):
        if tensor.layout is torch.strided:
            nbytes = tensor.untyped_storage().nbytes()
            if nbytes >= MIN_MOVABLE:
                total = -(-total // _ALIGNMENT) * _ALIGNMENT + nbytes
    return total


class Serving(Paused):  # type: ignore[no-untyped-call]
    """Backward: hands back what was put away, as long as the operators are those of the forward."""

    def __init__(
        self, sequence: list[Any], caught: Mapping[int, Caught], device: torch.device
    ) -> None:
        super().__init__()
        self._sequence = sequence
        self._caught = caught
        self._device = device
        self._position = 0
        self.diverged = False
        self.served = 0
        self.stale = 0

    def operator(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        position, self._position = self._position, self._position + 1
        if self.diverged or position >= len(self._sequence):
            return func(*args, **kwargs)
        if self._sequence[position] is not func:
            self.diverged = True
            return func(*args, **kwargs)
        caught = self._caught.get(position)
        if caught is None:
            return func(*args, **kwargs)
        if caught.is_stale():
            self.stale += 1
            return func(*args, **kwargs)
        self.served += 1
        output = caught.served()
        if caught.random_state is not None:
            _advance(caught.random_state, self._device)
        return output


class SelectiveFrame(RecomputeFrame):
    """One call of a block whose expensive operators run once."""

    def __init__(self, run: BlockRun, mode: Catching, counts: SelectiveCounts) -> None:
        super().__init__(run)
        self._mode: Catching | None = mode
        self._counts = counts
        self._sequence: list[Any] = mode.sequence
        self.caught = mode.caught

    def run(self, args: Any, kwargs: Any) -> Any:
        mode, self._mode = self._mode, None
        assert mode is not None
        with passing_hooks(mode.outside(self._pack), unpack_holder), mode:
            return self._forward(*args, **kwargs)

    def _again(self, collect: Callable[[torch.Tensor], Any], args: Any, kwargs: Any) -> None:
        mode = Serving(self._sequence, self.caught, self._device)
        with (
            contextlib.suppress(EnoughError),
            passing_hooks(mode.outside(collect), lambda saved: saved),
            mode,
        ):
            self._forward(*args, **kwargs)
        self._count(mode)

    def _count(self, mode: Serving) -> None:
        self._counts.served += mode.served
        self._counts.stale += mode.stale
        self._counts.diverged += mode.diverged
        if mode.stale:
            self._counts.say(self.name, _CHANGED)
        if mode.diverged:
            self._counts.say(self.name, _DIVERGED)
