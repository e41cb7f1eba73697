"""RECOMPUTE with little memory: what a block makes again waits elsewhere until backward reads it.

Forward knows nothing of it. When the block runs again, each storage that the plan gives a tier
goes there right after it was saved, so that the block's tensors are never all here at once;
backward brings back what it reads. All of it lives for one graph task and no longer: the next one
runs the block again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree

from ._blocks import stays_reason
from ._frames import FrameStore, Moved
from ._meter import ParameterStorages, observe_everywhere
from ._recompute import Collected, Hold, RecomputeFrame
from .errors import FailedPrecondition
from .plan import Plan


class Place(weakref.ref[torch.UntypedStorage]):
    """A living storage's place in its block, for the store. Weak: it never keeps the memory."""

    __slots__ = ("block", "entry", "ordinal")
    block: str
    ordinal: int  # -1: not one of the block's own.
    entry: Any


class Ordinals:
    """Numbers what a block saves when it runs again, as the ledger did when it was profiled.

    Args:
        block: its key.
        plan: that the ordinals are for.
        given: the block's arguments of this run.
        parameters: of the whole model, and the block's own.
    """

    def __init__(
        self, block: str, plan: Plan, given: Any, parameters: tuple[ParameterStorages, ...]
    ) -> None:
        self._block = block
        self._plan = plan
        self._parameters = parameters
        self._places: dict[int, Place] = {}
        self._next = 0
        for leaf in _pytree.tree_leaves(given):
            if isinstance(leaf, torch.Tensor):
                self._next += 1  # Saved or not, movable or not.
                if leaf.layout is torch.strided:
                    self._add(leaf.untyped_storage(), -1)

    def place(self, tensor: torch.Tensor, is_old: bool) -> Place | None:
        """Of the tensor's storage; None: it is not the block's own.

        Args:
            tensor: saved now; strided, on the device that computes.
            is_old: the storage was there before the block ran again.
        """
        storage = tensor.untyped_storage()
        if not storage.nbytes() or self.is_parameter(storage):
            return None
        place = self._places.get(storage._cdata)
        if place is None or place() is not storage:
            # What the block finds in its surroundings has an ordinal in the block that saved it
            # first. Which one that was is not known here: the size tells.
            own = not is_old or self._is_next(storage.nbytes())
            place = self._add(storage, self._next if own else -1)
            self._next += own
        return place if place.ordinal >= 0 and not is_old else None

    def is_parameter(self, storage: torch.UntypedStorage) -> bool:
        """Of the model, as gathered now."""
        return any(storage in known for known in self._parameters)

    def _is_next(self, nbytes: int) -> bool:
        decision = self._plan.decisions.get((self._block, self._next))
        return decision is not None and decision.nbytes == nbytes

    def _add(self, storage: torch.UntypedStorage, ordinal: int) -> Place:
        place = Place(storage)
        place.block, place.ordinal, place.entry = self._block, ordinal, None
        self._places[storage._cdata] = place
        return place


class Waiting(Collected):
    """A tensor that was made again and waits elsewhere. Whoever holds this holds no memory of it
    once it was taken or let go of: a block may keep the graph of its second run."""

    __slots__ = ("__weakref__", "block", "moved")

    def __init__(self, moved: Moved, block: str) -> None:
        self.moved: Moved | None = moved
        self.block = block
        self.tensor = None
        self.version = moved.version
        self.view = moved.view
        self.storage = None

    def take(self) -> torch.Tensor | None:
        """As Collected's: brought back once, found again while that lives."""
        moved, self.moved = self.moved, None
        if moved is None:
            return super().take()
        tensor = moved.unpack()
        self.storage = weakref.ref(tensor.untyped_storage())
        return tensor

    def read(self) -> torch.Tensor:
        """For a backward through the second run's own graph, inside the block's forward."""
        if self.moved is None:
            raise FailedPrecondition(
                f"The graph of block {self.block}'s recomputation is differentiated after the "
                "backward that it was made for: what it saved is gone. Do not keep tensors of it "
                "on the module, or keep the block from being recomputed with forbid=['recompute']."
            )
        return self.moved.unpack()

    def let_go(self) -> None:
        """The slot is given back; a reload that somebody reads lives on."""
        self.moved = None


class Elsewhere(NamedTuple):
    """Where a block's storages go when it runs again."""

    store: FrameStore
    plan: Plan
    micro_batch: int
    parameters: ParameterStorages
    on_move: Callable[[int], None]  # Called with the bytes of each storage that goes.


class MovedFrame(RecomputeFrame):
    """One call of a recomputed block whose second run puts its storages away one by one."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Any,
        device: torch.device,
        on_recompute: Callable[[str, int], None],
        elsewhere: Elsewhere,
    ) -> None:
        super().__init__(name, module, forward, args, kwargs, device, on_recompute)
        self._module = module
        self._elsewhere = elsewhere
        # Of what the first run saved: what is still the same storage was not made by the block.
        self._first: list[weakref.ref[torch.UntypedStorage] | None] = []

    def _pack(self, tensor: torch.Tensor) -> Any:
        strided = tensor.layout is torch.strided
        self._first.append(weakref.ref(tensor.untyped_storage()) if strided else None)
        return super()._pack(tensor)

    def _is_old(self, index: int, storage: torch.UntypedStorage) -> bool:
        first = self._first[index] if index < len(self._first) else None
        return first is not None and first() is storage

    @staticmethod
    def _held(held: Any) -> torch.Tensor:
        return held.read() if isinstance(held, Waiting) else held

    def _holding(self, collected: dict[int, Collected], args: Any, kwargs: Any) -> Hold:
        hold = super()._holding(collected, args, kwargs)
        where = self._elsewhere
        if where.store.closed:
            return hold  # Its leases are gone, and so is the reason why they were needed.
        parameters = (where.parameters, ParameterStorages(self._module))
        ordinals = Ordinals(self.name, where.plan, (args, kwargs), parameters)

        def put(index: int, tensor: torch.Tensor, wanted: bool) -> Any:
            if tensor.layout is not torch.strided or tensor.device != self._device:
                return hold(index, tensor, wanted)
            place = ordinals.place(tensor, self._is_old(index, tensor.untyped_storage()))
            moved = self._move(tensor, place) if place is not None and wanted else None
            if moved is None:
                return hold(index, tensor, wanted)
            collected[index] = waiting = Waiting(moved, self.name)
            where.store.borrowed.add(waiting)
            return waiting

        return put

    def _move(self, tensor: torch.Tensor, place: Place) -> Moved | None:
        store, plan, micro_batch, parameters, on_move = self._elsewhere
        nbytes = tensor.untyped_storage().nbytes()
        decision = plan.lookup_again(self.name, place.ordinal, nbytes)
        if decision is None or stays_reason(tensor, self._device, parameters):
            return None
        observe_everywhere(tensor.untyped_storage())
        before = place.entry
        moved = store.move(
            tensor,
            place,
            micro_batch=micro_batch,
            block_index=plan.index[self.name],
            tier=decision.tier,
            lender=decision.device,
            preferred_offset=decision.preferred_offset,
            reader=self.name,
        )
        if place.entry is not before:
            on_move(nbytes)
        return moved

    def _let_go(self, collected: dict[int, Collected]) -> None:
        for one in collected.values():
            if isinstance(one, Waiting):
                one.let_go()
        super()._let_go(collected)
        if not self._elsewhere.store.closed:
            self._elsewhere.store.release_sources(0)
