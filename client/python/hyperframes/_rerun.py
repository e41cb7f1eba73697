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
from torch.utils import _pytree

from ._blocks import stays_reason
from ._frames import FrameStore, Moved
from ._meter import ParameterStorages, observe_everywhere
from ._recompute import BlockRun, Collected, Hold, RecomputeFrame
from .errors import FailedPrecondition
from .plan import Plan


class Place(weakref.ref[torch.UntypedStorage]):
    """A living storage's place in its block, for the store. Weak: it never keeps the memory."""

    __slots__ = ("block", "entry", "ordinal")
    block: str
    ordinal: int
    entry: Any


class Seen:
    """Storages by identity and what is known of them, as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.UntypedStorage], Any]] = {}

    def find(self, storage: torch.UntypedStorage) -> Any:
        """None: not seen."""
        known = self._known.get(storage._cdata)
        return known[1] if known is not None and known[0]() is storage else None

    def add(self, storage: torch.UntypedStorage, what: Any) -> None:
        self._known[storage._cdata] = weakref.ref(storage), what


class _Saved(NamedTuple):
    """What the first run saved at one place."""

    storage: weakref.ref[torch.UntypedStorage]
    number: int  # Of the storage among the block's; -1: it has none.


class Ordinals:
    """Numbers a block's storages as the ledger did when it was profiled.

    The first run tells which of its saved tensors share a storage; the second may share less, for
    autocast's casts are not always cached there. Only the second tells what the block did not make
    itself.

    Args:
        block: its key.
        given: the block's arguments.
        parameters: of the whole model.
        others: by storage, the block of this forward that saved it first. Added to.
    """

    def __init__(self, block: str, given: Any, parameters: ParameterStorages, others: Seen) -> None:
        self._block = block
        self._parameters = parameters
        self._others = others
        self._mine = Seen()
        self._saved: list[_Saved | None] = []
        self._count = 0
        self._given = 0
        for leaf in _pytree.tree_leaves(given):
            if isinstance(leaf, torch.Tensor):
                self._given += 1  # Each has an ordinal, saved or not, movable or not.
                if leaf.layout is torch.strided:
                    self._mine.add(leaf.untyped_storage(), -1)

    def first_run(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Call for every tensor that the first run saves."""
        if tensor.layout is not torch.strided or tensor.device != device:
            self._saved.append(None)
            return
        storage = tensor.untyped_storage()
        number = self._mine.find(storage)
        if number is None:
            number = -1
            if storage.nbytes() and storage not in self._parameters:
                if self._others.find(storage) is None:
                    number, self._count = self._count, self._count + 1
                    self._others.add(storage, self._block)
            self._mine.add(storage, number)
        self._saved.append(_Saved(weakref.ref(storage), number))

    def second_run(self, plan: Plan) -> Callable[[int, torch.Tensor], Place | None]:
        """What gives the place of the tensor saved at an index; None: the block did not make it."""
        places = Seen()
        ordinals: dict[int, int] = {}
        following = self._given

        def place(index: int, tensor: torch.Tensor) -> Place | None:
            nonlocal following
            saved = self._saved[index] if index < len(self._saved) else None
            if saved is None or saved.number < 0:
                return None
            storage = tensor.untyped_storage()
            is_old = saved.storage() is storage
            if saved.number not in ordinals:
                # What it finds in its surroundings has an ordinal in the block that saved it first,
                # and may stand in a ledger that is not at hand here: the size tells.
                fits = plan.lookup(self._block, following, storage.nbytes()) is not None
                ordinals[saved.number] = -1 if is_old and not fits else following
                following += fits or not is_old
            if is_old or ordinals[saved.number] < 0:
                return None
            found: Place | None = places.find(storage)
            if found is None:
                found = Place(storage)
                found.block, found.ordinal = self._block, ordinals[saved.number]
                found.entry = None
                places.add(storage, found)
            return found

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


def _is_inside_autocast() -> bool:
    """Also inside one that is switched off: the cache lives to the end of the outermost."""
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return bool(depth > 1)


class Elsewhere(NamedTuple):
    """Where a block's storages go when it runs again."""

    store: FrameStore
    plan: Plan
    micro_batch: int
    parameters: ParameterStorages
    others: Seen
    on_move: Callable[[int], None]  # Called with the bytes of each storage that goes.


class MovedFrame(RecomputeFrame):
    """One call of a recomputed block whose second run puts its storages away one by one."""

    def __init__(self, run: BlockRun, elsewhere: Elsewhere) -> None:
        super().__init__(run)
        self._caches_casts = self._surroundings.caches_casts
        self._where = elsewhere
        self._ordinals = Ordinals(
            run.name, (run.args, run.kwargs), elsewhere.parameters, elsewhere.others
        )

    def _pack(self, tensor: torch.Tensor) -> Any:
        self._ordinals.first_run(tensor, self._device)
        return super()._pack(tensor)

    def _recompute(self) -> dict[int, Collected]:
        # The cache would hold every weight's cast to the end of the run. Around a backward inside
        # the caller's own autocast it holds them anyway, and they are those of the first run.
        self._surroundings.caches_casts = self._caches_casts and _is_inside_autocast()
        collected = super()._recompute()
        # What was made last is read first, behind its own copy-out: plans count no stash from here.
        self._where.store.release_sources(0)
        return collected

    @staticmethod
    def _held(held: Any) -> torch.Tensor:
        return held.read() if isinstance(held, Waiting) else held

    def _holding(self, collected: dict[int, Collected]) -> Hold:
        hold = super()._holding(collected)
        if self._where.store.closed:
            return hold  # Its leases are gone, and with them the plan that needed them.
        place_of = self._ordinals.second_run(self._where.plan)

        def put(index: int, tensor: torch.Tensor, wanted: bool) -> Any:
            place = place_of(index, tensor) if tensor.layout is torch.strided else None
            moved = self._move(tensor, place) if place is not None and wanted else None
            if moved is None:
                return hold(index, tensor, wanted)
            collected[index] = waiting = Waiting(moved, self.name)
            self._where.store.borrowed.add(waiting)
            return waiting

        return put

    def _move(self, tensor: torch.Tensor, place: Place) -> Moved | None:
        where, nbytes = self._where, tensor.untyped_storage().nbytes()
        decision = where.plan.lookup_again(self.name, place.ordinal, nbytes)
        if decision is None or stays_reason(tensor, self._device, where.parameters):
            return None
        observe_everywhere(tensor.untyped_storage())
        before = place.entry
        moved = where.store.move(
            tensor,
            place,
            micro_batch=where.micro_batch,
            block_index=where.plan.index[self.name],
            tier=decision.tier,
            lender=decision.device,
            preferred_offset=decision.preferred_offset,
            reader=self.name,
        )
        if place.entry is not before:
            where.on_move(nbytes)
        return moved

    def _let_go(self, collected: dict[int, Collected]) -> None:
        for one in collected.values():
            if isinstance(one, Waiting):
                one.let_go()
        super()._let_go(collected)
        self._where.store.release_sources(0)

    def _forgetting(self, task: int) -> Callable[[], None]:
        forget, store = super()._forgetting(task), self._where.store

        def forget_and_release() -> None:
            forget()
            store.release_sources(0)  # Of what was read and let go of before its copy had ended.

        return forget_and_release
