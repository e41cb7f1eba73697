"""Which operators of a block are worth saving the outputs of: measured, and then tried.

The block's forward runs once more with every operator timed. What takes much longer than its output
takes to copy is a candidate. Then the block is tried: a forward that puts the candidates' outputs
away, and a recomputation that is handed them back. What it saves is compared bit by bit with what
the forward saved: a block that does not stand it is never SELECTIVE.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ._block_runs import words_of
from ._blocks import MIN_MOVABLE
from ._engine import KEEP
from ._frames import describe_tensor, version_probe
from ._operators import communicates, is_pure, shared_versions, tensors_in, written_by
from ._recompute import BlockRun
from ._selective import (
    Catching,
    SelectiveCounts,
    SelectiveFrame,
    Shelf,
    is_plain,
    padded_bytes,
    random_state,
)
from .errors import FailedPrecondition
from .plan import Choice
from .profile import BlockInfo, SelectiveStorage

# An operator is cheap when it takes no longer than so many passes over its output, each as long as
# a copy. Additions take 1.5 of them, the parts of a norm up to 3, a matrix product of 4096 wide
# operands over 10, attention hundreds.
CHEAP_PASSES = 4.0
MOST_CANDIDATES = 32
_QUEUE_AHEAD_CYCLES = 40_000_000  # About 25 ms of a GPU: the processor gets ahead of it.
_ROUTING_SHARE = 16  # Data-dependent outputs are always saved up to this part of a block's bytes.
_FINGERPRINT_PARTS = 64
_COPIES = 3
_REPEATS = 2  # Each operator's time is the least of so many.
_LARGEST_COPY = 64 << 20


_cheap_passes, _most_candidates = CHEAP_PASSES, MOST_CANDIDATES


@contextlib.contextmanager
def every_operator() -> Iterator[None]:
    """What operators take does not matter inside: every output that may be saved is a candidate."""
    global _cheap_passes, _most_candidates
    before = _cheap_passes, _most_candidates
    _cheap_passes, _most_candidates = 0.0, sys.maxsize
    try:
        yield
    finally:
        _cheap_passes, _most_candidates = before


@dataclass
class _Run:
    """One operator that ran."""

    func: Any
    seconds: float = 0.0
    marks: Any = None  # CUDA events around it.
    may_be_saved: bool = False
    nbytes: int = 0
    kept_bytes: int = 0
    largest: dict[str, Any] = field(default_factory=dict)  # dtype and shape.
    probes: list[tuple[torch.Tensor, int]] = field(default_factory=list)  # Version counters.
    is_saved: bool = False
    routes: bool = False
    draws: bool = False


class _Timing(Catching):  # type: ignore[no-untyped-call]
    """Times every operator. Holds nothing of what they return but their version counters."""

    def __init__(self, block: str, device: torch.device) -> None:
        super().__init__(block, {}, Shelf(None, device, 0, 0, None), SelectiveCounts())
        self._device = device
        self.runs: list[_Run] = []
        self.communicates = False
        self._made: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Run]] = {}

    def operator(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        self.communicates = self.communicates or communicates(func)
        run = _Run(func)
        for tensor in written_by(func, args, kwargs):
            changed = self._maker(tensor)
            if changed is not None:
                changed.may_be_saved = False
        before = random_state(self._device) if _may_draw(func) else None
        with self._timed(run):
            output = func(*args, **kwargs)
        self.sequence.append(func)
        self.runs.append(run)
        given, made = tensors_in((args, kwargs)), tensors_in(output)
        run.may_be_saved = (
            is_pure(func)
            and not _has_generator(args, kwargs)
            and all(is_plain(tensor, self._device) for tensor in made)
            and _are_new(made, given)
        )
        if run.may_be_saved:
            self._look_at(run, given, made)
            if before is not None:
                run.draws = not torch.equal(before, random_state(self._device))
        return output

    def _look_at(self, run: _Run, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        sizes = [tensor.untyped_storage().nbytes() for tensor in made]
        run.nbytes = padded_bytes(made)
        run.kept_bytes = sum(size for size in sizes if size < MIN_MOVABLE)
        run.routes = _routes(run.func, given, made)
        if made:
            run.largest = describe_tensor(max(made, key=lambda t: t.untyped_storage().nbytes()))
        with shared_versions():
            run.probes = [(version_probe(tensor), tensor._version) for tensor in made]
        for tensor in made:
            storage = tensor.untyped_storage()
            self._made[storage._cdata] = (weakref.ref(storage), run)

    def saved(self, tensor: torch.Tensor) -> None:
        """Autograd saves this tensor now."""
        run = self._maker(tensor) if tensor.layout is torch.strided else None
        if run is not None:
            run.is_saved = True

    def _maker(self, tensor: torch.Tensor) -> _Run | None:
        storage = tensor.untyped_storage()
        found = self._made.get(storage._cdata)
        return found[1] if found is not None and found[0]() is storage else None

    @contextlib.contextmanager
    def _timed(self, run: _Run) -> Iterator[None]:
        if self._device.type == "cuda":
            run.marks = [_event(), _event()]
            run.marks[0].record()
            yield
            run.marks[1].record()
        else:
            start = time.perf_counter()
            yield
            run.seconds = time.perf_counter() - start

    def finish(self) -> None:
        """Reads the CUDA events."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            for run in self.runs:
                run.seconds = run.marks[0].elapsed_time(run.marks[1]) / 1e3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _may_draw(func: Any) -> bool:
    return func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags


def _has_generator(args: Any, kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(x, torch.Generator) for x in (*args, *kwargs.values()))


def _are_new(made: list[torch.Tensor], given: list[torch.Tensor]) -> bool:
    """Each has a storage of its own: a custom operator may return an argument undeclared."""
    known = {t.untyped_storage()._cdata for t in given if t.layout is torch.strided}
    mine = {tensor.untyped_storage()._cdata for tensor in made}
    return len(mine) == len(made) and not known & mine


def _routes(func: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """Indices that depend on values: another rounding would send a token to another expert."""
    indices = any(
        not (t.is_floating_point() or t.is_complex()) and t.dtype not in (torch.bool, torch.uint8)
        for t in made
    )
    depends = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)
    if depends:
        return indices or not made
    return indices and any(t.is_floating_point() for t in given)


class _Measured(SelectiveFrame):
    """The forward whose operators are timed."""

    needed = 0  # Operators that ran before the last tensor was saved: the others never run again.

    def __init__(self, run: BlockRun, timing: _Timing) -> None:
        super().__init__(run, timing, SelectiveCounts())
        self._timing = timing

    def _pack(self, tensor: torch.Tensor) -> Any:
        self.needed = len(self._timing.sequence)
        self._timing.saved(tensor)
        return super()._pack(tensor)


class _Trial(SelectiveFrame):
    """The forward that is made again, to see whether it saves the same."""

    def __init__(self, run: BlockRun, mode: Catching, counts: SelectiveCounts) -> None:
        super().__init__(run, mode, counts)
        self._fingerprints: list[torch.Tensor] = []
        self.seconds = float("inf")

    def _pack(self, tensor: torch.Tensor) -> Any:
        self._fingerprints.append(fingerprint(tensor))
        return super()._pack(tensor)

    def again(self) -> dict[int, Any]:
        """Runs it again with what was caught; ``seconds`` is the least that it took so far."""
        start = _now(self._device)
        collected = self._recompute()
        self.seconds = min(self.seconds, _now(self._device) - start)
        return collected

    def is_faithful(self) -> bool:
        """Runs it again; True when every tensor that backward would get has the same bits."""
        collected = self.again()
        for index in sorted(collected):
            tensor = collected[index].take()
            if not torch.equal(fingerprint(tensor), self._fingerprints[index]):
                return False
            del tensor
        counts = self._counts
        return not (counts.stale or counts.diverged or counts.unlike_profile)


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Sums over the bits of a few parts: equal for equal bits, whatever the numbers mean."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return torch.zeros(1, dtype=torch.int64)
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
    bits = flat.view(kind[tensor.element_size()])
    parts = bits.chunk(_FINGERPRINT_PARTS)
    return torch.stack([part.sum(dtype=torch.int64) for part in parts])


class CompiledWatch:
    """Notices compiled code that runs inside: a dispatch mode would make Dynamo give it up."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> CompiledWatch:
        self._frames = sys.modules.get("torch._dynamo.eval_frame")
        if self._frames is not None:
            modern = hasattr(self._frames, "_maybe_set_eval_frame")
            self._name = "_maybe_set_eval_frame" if modern else "set_eval_frame"
            self._original: Callable[[Any], Any] = getattr(self._frames, self._name)
            setattr(self._frames, self._name, self._set)
        return self

    def _set(self, callback: Any) -> Any:
        self.seen = self.seen or callable(callback)
        return self._original(callback)

    def __exit__(self, *_: Any) -> None:
        if self._frames is not None:
            setattr(self._frames, self._name, self._original)


def measure_operators(
    info: BlockInfo,
    module: nn.Module,
    forward: Callable[..., Any],
    arguments: Callable[[], tuple[Any, Any]],
    device: torch.device,
) -> None:
    """Fills in ``selective``, ``selective_base_s`` and ``selective_reason`` of ``info``.

    Takes three forwards and two recomputations of the block. Random states and buffers are the
    caller's to put back.

    Args:
        arguments: makes fresh positional and keyword arguments for one call.
    """
    try:
        found = _timed_candidates(info, module, forward, arguments, device)
        if found:
            info.selective_base_s = _tried(info, module, forward, arguments(), device, found)
            info.selective = found
    except Exception as error:  # A mode on every operator meets what a plain run never does.
        info.selective_reason = f"trying it failed: {words_of(error)}"


def _timed_candidates(
    info: BlockInfo,
    module: nn.Module,
    forward: Callable[..., Any],
    arguments: Callable[[], tuple[Any, Any]],
    device: torch.device,
) -> list[SelectiveStorage]:
    earlier: list[_Run] = []
    for _ in range(_REPEATS):
        timing = _Timing(info.name, device)
        given = arguments()
        block_run = BlockRun(info.name, module, forward, *given, device, _nothing)
        frame = _Measured(block_run, timing)
        if device.type == "cuda":
            torch.cuda._sleep(_QUEUE_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
        frame.run(*given)
        timing.finish()
        for run, before in zip(timing.runs, earlier, strict=False):
            if run.func is before.func:
                run.seconds = min(run.seconds, before.seconds)
                run.may_be_saved = run.may_be_saved and run.nbytes == before.nbytes
        earlier = timing.runs
    if timing.communicates:
        info.selective_reason = "it communicates with other ranks"
        return []
    runs = [
        (position, run)
        for position, run in enumerate(timing.runs[: frame.needed])
        if run.may_be_saved and all(probe._version == now for probe, now in run.probes)
    ]
    chosen = _expensive(runs, info.nbytes, device)
    if not chosen:
        info.selective_reason = "no operator takes much longer than its output takes to copy"
    return [
        SelectiveStorage(
            ordinal=position,
            op=str(run.func),
            nbytes=run.nbytes,
            dtype=run.largest.get("dtype", ""),
            shape=run.largest.get("shape", []),
            recompute_s=run.seconds,
            is_saved=run.is_saved,
            always=run.routes and run.nbytes * _ROUTING_SHARE <= info.nbytes,
            random=run.draws,
            kept_bytes=run.kept_bytes,
            unmovable_reason="" if run.nbytes >= MIN_MOVABLE else f"under {MIN_MOVABLE} bytes",
        )
        for position, run in chosen
    ]


def _nothing(name: str, nanoseconds: int) -> None:
    pass


def _expensive(
    runs: list[tuple[int, _Run]], block_bytes: int, device: torch.device
) -> list[tuple[int, _Run]]:
    """Those that are worth saving, in order of execution."""
    if not runs:
        return []
    largest = max(run.nbytes for _, run in runs)
    per_byte = _copy_seconds(min(largest, _LARGEST_COPY), device)
    least = min(run.seconds for _, run in runs)  # What it costs to run anything at all.

    def is_expensive(run: _Run) -> bool:
        if run.routes and run.nbytes * _ROUTING_SHARE <= block_bytes:
            return True
        if run.nbytes < MIN_MOVABLE:
            return False
        return run.seconds > _cheap_passes * (least + run.nbytes * per_byte)

    found = [(position, run) for position, run in runs if is_expensive(run)]
    found.sort(key=lambda item: (not item[1].routes, -item[1].seconds))
    return sorted(found[:_most_candidates], key=lambda item: item[0])


def _copy_seconds(nbytes: int, device: torch.device) -> float:
    """Seconds per byte of a copy of so many bytes on this device."""
    if nbytes <= 0:
        return 0.0
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(_COPIES):
        start = _now(device)
        target.copy_(source)
        times.append(_now(device) - start)
    return min(times) / nbytes


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _tried(
    info: BlockInfo,
    module: nn.Module,
    forward: Callable[..., Any],
    arguments: tuple[Any, Any],
    device: torch.device,
    found: list[SelectiveStorage],
) -> float:
    """Seconds of a recomputation with all of ``found`` handed back. Raises where bits differ."""
    choices = {s.ordinal: Choice(s.ordinal, s.op, s.nbytes, KEEP, "", -1, s.random) for s in found}
    counts = SelectiveCounts()
    mode = Catching(info.name, choices, Shelf(None, device, 0, 0, None), counts)
    run = BlockRun(info.name, module, forward, *arguments, device, _nothing)
    frame = _Trial(run, mode, counts)
    output = frame.run(*arguments)  # Held: the graph below it holds what backward would ask for.
    if not frame.is_faithful():
        raise FailedPrecondition("it saved other bits when it ran again with outputs handed back")
    frame.again()
    del output
    return frame.seconds
