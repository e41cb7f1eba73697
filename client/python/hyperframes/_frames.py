"""What takes the place of a saved tensor: kept where it is, or moved and brought back.

Rules that every line here serves (each broken one gave somebody a silent wrong gradient):
 * identity is the storage with a living reference, never an address;
 * a packed object remembers the version counter, and unpack raises eager's error when an in-place
   change happened after saving, because PyTorch stops checking once hooks are installed (a write
   through ``.data`` is invisible to it and to us);
 * the destruction of the packed objects frees a slot; unpack never does (retain_graph);
 * a view comes back with its size, stride, offset and dtype in one storage shared by all views.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, Protocol

import torch

from ._engine import TIER_NAMES, Engine
from ._inflight import ForwardToken
from ._meter import observe_everywhere
from .errors import FailedPrecondition, HyperFramesError, error_from_code

_empties: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}


def version_probe(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that shares the version counter of ``tensor`` without holding its storage."""
    probe = tensor.detach()
    if tensor.layout is not torch.strided:
        return probe  # Holds its memory: there is no storage to let go of.
    key = (tensor.device, tensor.dtype)
    empty = _empties.get(key)
    if empty is None:
        empty = _empties[key] = torch.empty(0, device=tensor.device, dtype=tensor.dtype)
    probe.data = empty
    return probe


def modified_error(type_name: str, size: tuple[int, ...], now: int, expected: int) -> RuntimeError:
    """Eager's own error for an in-place change after saving."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{type_name} {list(size)}] is at version {now}; expected version {expected} "
        "instead. Hint: enable anomaly detection to find the operation that failed to compute its "
        "gradient, with torch.autograd.set_detect_anomaly(True)."
    )


def current_stream(device: torch.device) -> int:
    """The stream that computes now. Asked each time: models change streams."""
    if device.type == "cuda":
        return int(torch.cuda.current_stream(device).cuda_stream)
    return 0


def used_by_current_stream(storage: torch.UntypedStorage) -> None:
    """Its memory is not handed out again before the current stream has done what it has now."""
    if storage.device.type == "cuda":
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        whole.record_stream(torch.cuda.current_stream(storage.device))


class View:
    """Geometry of a tensor over its storage, to build it again over another one."""

    __slots__ = ("dtype", "offset", "size", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        strided = tensor.layout is torch.strided
        self.size = tuple(tensor.size())
        self.stride = tuple(tensor.stride()) if strided else ()
        self.offset = int(tensor.storage_offset()) if strided else 0
        self.dtype = tensor.dtype

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The same view over ``storage``."""
        base = torch.empty(0, dtype=self.dtype, device=storage.device)
        return base.set_(storage, self.offset, self.size, self.stride)


class Kept:
    """A saved tensor that stays where it is. Detached: the tensor itself would be a cycle."""

    __slots__ = ("reader", "tensor", "token", "version")

    def __init__(
        self, tensor: torch.Tensor, token: ForwardToken | None = None, reader: str = ""
    ) -> None:
        self.token = token
        self.reader = reader  # The block that saved it.
        self.version = tensor._version
        self.tensor = tensor.detach()

    def unpack(self) -> torch.Tensor:
        """The tensor, or eager's error after an in-place change."""
        if self.tensor._version != self.version:
            raise modified_error(
                self.tensor.type(), tuple(self.tensor.size()), self.tensor._version, self.version
            )
        return self.tensor


class Entry:
    """A storage that was moved. Its slot is freed when the last Moved that needs it is gone."""

    __slots__ = (
        "__weakref__", "anytime", "handle", "held", "lock", "nbytes", "ordered", "prefetched",
        "prefetched_stream", "reload", "rounds", "store", "tier", "where", "written",
    )  # fmt: skip

    def __init__(
        self, store: FrameStore, handle: int, nbytes: int, tier: int, where: str, anytime: bool
    ) -> None:
        self.store = store
        self.handle = handle
        self.nbytes = nbytes
        self.tier = tier
        self.where = where  # "h.3 storage 4", for errors.
        self.anytime = anytime  # Plans count it during all of backward.
        self.lock = threading.RLock()
        self.reload: weakref.ref[torch.UntypedStorage] | None = None
        self.prefetched: torch.UntypedStorage | None = None
        self.prefetched_stream = 0
        self.ordered: set[int] = set()  # Streams that run behind the reload in use.
        # By the block that reads them: tensors packed over it, and how many of them were read.
        self.rounds: dict[str, list[int]] = {}
        # The reload, while a backward has read some of a block's tensors and will read the others:
        # without it each would have to be fetched again, and waited for. Between two blocks no
        # plan counts it, but for what it counts at any time.
        self.held: torch.UntypedStorage | None = None
        self.written = False  # Compiled code has the reload, and may write to it.

    def packed(self, reader: str) -> None:
        """One more tensor of ``reader`` is over it."""
        self.rounds.setdefault("" if self.anytime else reader, [0, 0])[0] += 1

    def is_reloaded(self) -> bool:
        """A reload buffer of it is alive or on its way."""
        return self.prefetched is not None or (
            self.reload is not None and self.reload() is not None
        )

    def prefetch(self) -> None:
        """Starts a reload ahead of its consumer."""
        with self.lock:
            if self.is_reloaded():
                return
            storage = self.store.allocate(self.nbytes)
            stream = current_stream(self.store.device)
            self.store.engine.fetch(self.handle, storage.data_ptr(), True, stream)
            # Held until consumed: the engine writes to it.
            self.prefetched, self.prefetched_stream = storage, stream

    def acquire(self, reader: str, compiled: bool) -> torch.UntypedStorage:
        """The bytes, on the computing device, for a tensor that ``reader`` packed.

        Tensors that are saved together are over one buffer, as they were in forward. What eager
        code was given is shared as long as it lives. Compiled code may write to what only it has
        (donated buffers) and return what it was given as gradients, which are added to in place;
        so its buffer is nobody else's, nor its own once it has read all.
        """
        with self.lock:
            storage = self._acquire(compiled)
            self.written = compiled
            of_round = self.rounds["" if self.anytime else reader]
            of_round[1] += 1
            self.held = storage if of_round[1] % of_round[0] else None
            if self.held is not None and not self.anytime:
                self.store.holding.add(self)
            return storage

    def let_go(self) -> None:
        """Another block's backward begins: what this one's has not read it may never read."""
        with self.lock:
            self.held = None
            for of_round in self.rounds.values():
                of_round[1] = 0

    def _acquire(self, compiled: bool) -> torch.UntypedStorage:
        with self.lock:
            stream = current_stream(self.store.device)
            alive = self.held
            if alive is None and not compiled and not self.written and self.reload is not None:
                alive = self.reload()
            shares = alive is not None
            if shares and stream in self.ordered:
                assert alive is not None
                return alive
            storage = alive if shares else self.prefetched
            made_on = self.prefetched_stream if storage is not None and not shares else stream
            try:
                if storage is None:
                    storage = self.store.allocate(self.nbytes)
                    self.store.engine.fetch(self.handle, storage.data_ptr(), False, stream)
                self.store.engine.wait(self.handle, stream)
            except HyperFramesError as error:
                raise error_from_code(
                    error.code, f"{self.where} ({self.nbytes} bytes): {error}"
                ) from error
            if shares or made_on != stream:
                # The allocator gives it back to the stream that it was made on; this one reads it.
                used_by_current_stream(storage)
            if not shares:
                self.prefetched = None
                self.reload = weakref.ref(storage)
                self.ordered.clear()
            self.ordered.add(stream)
            return storage

    def __del__(self) -> None:
        # Runs on any thread at any moment: only the engine is called, never torch.
        if sys.is_finalizing():
            return
        try:
            if self.prefetched is not None:
                # The engine may still be writing to the buffer that dies with this object.
                self.store.engine.wait(self.handle, self.prefetched_stream)
        except Exception:  # Nothing to tell and nobody to tell it to: Drop follows.
            self.store.failed_drops += 1
        try:
            self.store.engine.drop(self.handle)
            self.store.live.discard(self.handle)
        except Exception:
            self.store.failed_drops += 1


class Moved:
    """A saved tensor whose storage waits elsewhere."""

    __slots__ = (
        "compiled", "entry", "probe", "reader", "token", "type_name", "version", "view",
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, entry: Entry, reader: str, compiled: bool) -> None:
        self.token: ForwardToken | None = None
        self.view = View(tensor)
        self.entry = entry
        self.reader = reader
        self.compiled = compiled
        entry.packed(reader)
        self.version = tensor._version
        self.probe = version_probe(tensor)
        self.type_name = tensor.type()

    def unpack(self) -> torch.Tensor:
        """The tensor again: same bytes, size, stride, offset. The slot stays."""
        if self.probe._version != self.version:
            raise modified_error(self.type_name, self.view.size, self.probe._version, self.version)
        store = self.entry.store
        store.begin_reading(self.reader)
        tensor = self.view.over(self.entry.acquire(self.reader, self.compiled))
        store.start_prefetches()
        return tensor


class Origin(Protocol):
    """Where a storage comes from, as far as moving it goes. A ledger's record is one."""

    block: str
    ordinal: int
    entry: Any  # A weak reference to the frame entry, owned here.


class Borrower(Protocol):
    """Holds a moved storage for one backward only, and can make it again."""

    def let_go(self) -> None: ...


class FrameStore:
    """The moved storages of one session, their sources under way, and their reload buffers."""

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self.engine = engine
        self.device = device
        self.live: set[int] = set()
        self.stash: dict[int, torch.Tensor] = {}
        self.sources: dict[int, tuple[weakref.ref[torch.UntypedStorage], int, str]] = {}
        self.failed_drops = 0
        self.closed = False
        self.held: dict[str, int] = {}  # As the last backward found it when it began.
        self.holding: weakref.WeakSet[Entry] = weakref.WeakSet()
        # What a recomputation put away, for the backward that runs.
        self.borrowed: weakref.WeakSet[Borrower] = weakref.WeakSet()
        self._reader = ""
        self._watching = False
        self._entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """A reload buffer from torch's own allocator, aligned as eager's tensors are."""
        storage = torch.empty(nbytes, dtype=torch.uint8, device=self.device).untyped_storage()
        observe_everywhere(storage)
        return storage

    def move(
        self,
        tensor: torch.Tensor,
        record: Origin,
        *,
        micro_batch: int,
        block_index: int,
        tier: int,
        lender: str,
        preferred_offset: int,
        reader: str,
        compiled: bool = False,
        anytime: bool = False,
    ) -> Moved | None:
        """Starts the copy-out of the tensor's whole storage; None: it stays.

        Args:
            reader: the block that saves the tensor.
            compiled: by compiled code.
            anytime: plans count the storage during all of backward when it is moved.

        A storage that was changed in place since it was moved is moved again: its old bytes belong
        to the tensors saved before the change.
        """
        known: tuple[weakref.ref[Entry], torch.Tensor, int] | None = record.entry
        if known is not None:
            entry = known[0]()
            # Other version counter, or another version of it: other bytes for all we know.
            if entry is not None and known[1]._version == known[2] == tensor._version:
                return Moved(tensor, entry, reader, compiled)
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        placed = self.engine.put(
            micro_batch, block_index, record.ordinal, storage.data_ptr(), nbytes, tier, lender,
            preferred_offset, current_stream(self.device),
        )  # fmt: skip
        if placed.handle == 0:
            self.release_sources()
            return None
        self.stash[placed.handle] = tensor.detach()
        self.live.add(placed.handle)
        where = f"{record.block} storage {record.ordinal} on {TIER_NAMES[placed.tier]} {lender}"
        entry = Entry(self, placed.handle, nbytes, placed.tier, where.rstrip(), anytime)
        self._entries[placed.handle] = entry
        self.sources[placed.handle] = (weakref.ref(storage), nbytes, record.block)
        moved = Moved(tensor, entry, reader, compiled)
        record.entry = (weakref.ref(entry), moved.probe, moved.version)
        self.release_sources()
        return moved

    def begin_reading(self, reader: str) -> None:
        """The backward of block ``reader`` runs now (empty: nobody knows whose)."""
        if reader and reader != self._reader:
            self._reader = reader
            while self.holding:
                try:
                    self.holding.pop().let_go()
                except KeyError:  # The last one died meanwhile.
                    break

    def release_sources(self, limit: int = -1) -> None:
        """Lets go of sources whose copy-out no longer needs them."""
        if self.stash:
            for handle in self.engine.take_releasable(limit, current_stream(self.device)):
                self.stash.pop(handle, None)

    def start_prefetches(self) -> None:
        """Starts the reloads that the engine finds due."""
        if self.closed:
            return
        self.release_sources()
        for handle, _ in self.engine.next_to_prefetch():
            entry = self._entries.get(handle)
            if entry is not None:
                entry.prefetch()

    def watch_held(self) -> None:
        """A forward begins: the next backward notes what was moved without being freed."""
        self._watching = True

    def note_backward(self) -> None:
        """Call at every unpack. At the first one backward begins: the last sources go, and the
        first reloads start while the loss and what was kept are still busy."""
        if not self._watching:
            return
        self._watching = False
        self._note_held()
        self.start_prefetches()

    def _note_held(self) -> None:
        """Bytes, by block, that were moved but that other code keeps alive."""
        # The last sources under way: what backward needs first is on its way out as it begins.
        self.release_sources(0)
        held: dict[str, int] = {}
        for handle, (source, nbytes, block) in list(self.sources.items()):
            if handle not in self.live:
                del self.sources[handle]
            elif handle not in self.stash and source() is not None:
                held[block] = held.get(block, 0) + nbytes
        self.held = held

    def moved_bytes(self) -> int:
        """Bytes of the storages that wait elsewhere now."""
        return sum(entry.nbytes for entry in list(self._entries.values()))

    def close(self) -> None:
        """Gives the leases back. What ran forward before may still ask for its backward."""
        self.closed = True
        self.engine.close()
        self.stash.clear()

    def quiesce(self) -> bool:
        """A quiescent point. False: frames are still alive, nothing was done."""
        for borrower in list(self.borrowed):  # Left over by a backward that failed.
            borrower.let_go()
        if self.live:
            return False
        self.release_sources(0)
        self.stash.clear()
        self.sources.clear()
        try:
            self.engine.quiesce()
        except FailedPrecondition:
            return False  # A drop that failed: counted there, and its slot stays taken.
        return True


def describe_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """dtype and shape as profiles carry them."""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
