"""What copies cost the compute beside them: measured with the job's own work, for the planner.

One block's forward is timed alone and while copies run to a tier, its backward alone and while they
come back: what a step does. Where no block may be run again a plain matrix product stands in.
Nothing that is measured here lasts: outputs are dropped, gradients go nowhere, random states and
buffers are put back, and device memory is taken only as far as the profile has given it back.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils import _pytree

from ._block_runs import fresh, no_leaf, run_backward, set_random_state
from ._group import world_size
from ._meter import passing_hooks
from ._refusals import is_compiled
from .profile import BlockInfo, CopySlowdown

LIMIT_S = 1.0  # For all of it.
OUT, BACK = "out", "back"
_MOST_ROUNDS = 9
_FOR_A_ROUND = 0.75  # Of the limit; the rest is for what is borrowed to copy to.
_ENOUGH = 1.4  # Copies last so many times as long as the compute alone.
_MOST_ENOUGH = 5.6
_OUTLIVED = 0.1  # By such a share of the compute alone: they ran beside all of it.
_LEAST_SPARE = 1 << 20  # Of device memory, to copy from and into.
_MOST_SPARE = 32 << 20  # Copies of more are no faster.
_SIZES = (4096, 2048, 1024)  # Of the product that stands in.
_PRODUCTS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_SHORTEST_S = 0.005  # Of its repetitions.
_MOST_REPEATS = 1000
_MOST_KNOWN = 32
_LONGEST_NOTE = 200


class Copies(Protocol):
    """Copies between this GPU and lent memory, in lanes of their own."""

    @property
    def tiers(self) -> Sequence[str]:
        """To which there is a way: of "peer", "host"."""
        ...

    def start(self, tier: str, direction: str, seconds: float) -> None:
        """Queues copies for about so long. They begin once the compute stream gets here."""
        ...

    def join(self) -> None:
        """What is queued on the compute stream from now on comes after the copies."""
        ...

    def close(self) -> None:
        """Waits for them and gives the memory back."""
        ...


class Timer(Protocol):
    """Times what is queued on the compute stream."""

    def mark(self) -> Any:
        """A point in the stream."""
        ...

    def seconds(self, first: Any, last: Any) -> float:
        """Between two marks; waits for the second."""
        ...

    def drain(self) -> None:
        """Waits until nothing is queued."""
        ...

    def now(self) -> float:
        """Seconds of the program's own clock."""
        ...

    def allocated(self) -> int:
        """Bytes of device memory that tensors hold."""
        ...


@dataclass(frozen=True)
class Tools:
    """What measures on one device. ``copies`` is given the bytes of one copy."""

    timer: Timer
    copies: Callable[[int], Copies]


@dataclass(frozen=True)
class Work:
    """What is timed; ``backward`` is given what ``forward`` returned."""

    name: str
    forward: Callable[[], Any]
    backward: Callable[[Any], object]
    expected_s: float  # Both, alone.


def tools_for(device: torch.device) -> Tools | None:
    """None where nothing is measured: simulated devices say by themselves what copies cost."""
    if device.type != "cuda":
        return None
    from ._lane_copies import CudaTimer, LaneCopies

    return Tools(CudaTimer(device), lambda nbytes: LaneCopies(device, nbytes))


class Measurement:
    """Rounds of one piece of work: alone, and beside copies to every tier."""

    def __init__(self, work: Work, copies: Copies, timer: Timer) -> None:
        self._work, self._copies, self._timer = work, copies, timer
        self._enough = {(tier, way): _ENOUGH for tier in copies.tiers for way in (OUT, BACK)}
        self._shares: dict[tuple[str, str], list[float]] = {key: [] for key in self._enough}
        self.rounds = 0

    def run(self, deadline: float) -> None:
        """As many rounds as end in time, at most a few. May be none."""
        while self.rounds < _MOST_ROUNDS and self._ends_at() <= deadline:
            alone = self._both("", (0.0, 0.0))
            for tier in self._copies.tiers:
                self._both(tier, alone)
            self.rounds += 1

    def _ends_at(self) -> float:
        beside = sum(self._enough.values()) / 2
        return self._timer.now() + self._work.expected_s * (1 + beside)

    def _both(self, tier: str, alone: tuple[float, float]) -> tuple[float, float]:
        forward_s, output = self._timed(self._work.forward, tier, OUT, alone[0])
        backward_s, _ = self._timed(lambda: self._work.backward(output), tier, BACK, alone[1])
        return forward_s, backward_s

    def _timed(
        self, part: Callable[[], Any], tier: str, way: str, alone_s: float
    ) -> tuple[float, Any]:
        timer = self._timer
        timer.drain()
        if tier:
            self._copies.start(tier, way, alone_s * self._enough[tier, way])
        first = timer.mark()
        value = part()
        last = timer.mark()
        if tier:
            self._copies.join()
            end = timer.mark()
            # Copies that ended first say nothing of a time beside copies.
            if timer.seconds(last, end) < _OUTLIVED * alone_s:
                self._enough[tier, way] = min(2 * self._enough[tier, way], _MOST_ENOUGH)
            elif alone_s > 0:
                self._shares[tier, way].append(timer.seconds(first, last) / alone_s - 1)
        return timer.seconds(first, last), value

    def figures(self) -> list[CopySlowdown]:
        """Medians, in whole hundredths: a plan must not hang on the noise of one profile."""
        found = []
        for tier in self._copies.tiers:
            ways = [self._shares[tier, way] for way in (OUT, BACK)]
            if any(ways):
                found.append(CopySlowdown(tier, *(_share(seen) for seen in ways)))
        return found


def _share(seen: list[float]) -> float:
    return round(min(max(statistics.median(seen), 0.0), 1.0), 2) if seen else 0.0


_known: dict[Any, tuple[list[CopySlowdown], str]] = {}  # By what was measured with.


class CopyCosts:
    """Of one profile. ``found`` and ``note``: the figures, and how they came about or why not.

    Args:
        blocks: of the model; those of the commonest class are its layers, and stand for all.
    """

    def __init__(self, device: torch.device, blocks: Iterable[nn.Module]) -> None:
        self._device = device
        kinds = Counter(type(block) for block in blocks)
        self._layer = kinds.most_common(1)[0][0] if kinds else None
        self._tools = tools_for(device)
        self._spent = 0.0
        self._tried = False
        self._most_bytes = 0
        self.found: list[CopySlowdown] = []
        self.note = ""

    def look(
        self,
        info: BlockInfo,
        module: nn.Module | None,
        forward: Callable[..., Any],
        leaves: list[Any],
        spec: Any,
        outputs: list[Any],
    ) -> None:
        """Measures with this block if it is the first layer that may be run again. Buffers are the
        caller's to put back.

        Args:
            outputs: of the block's runs; all but the last are dropped, for their memory.
        """
        if self._tools is None or module is None:
            return
        self._most_bytes = max(self._most_bytes, info.nbytes + info.transient_bytes)
        if self._tried or type(module) is not self._layer or not _may_run_again(info):
            return
        if is_compiled(module):
            return  # Another call of it under other hooks could compile it again.
        expected_s = info.forward_s + info.backward_s
        if expected_s * (1 + 2 * _ENOUGH) > _FOR_A_ROUND * LIMIT_S:
            return
        before = self._tools.timer.allocated()
        del outputs[:-1]
        spare = before - self._tools.timer.allocated()
        if spare < _LEAST_SPARE:
            return
        self._tried = True
        work = _block_work(info, module, forward, leaves, spec, expected_s)
        key = (self._device, type(module), str(info.input_shapes), torch.is_autocast_enabled())
        self._measure(key, spare, lambda: work)

    def finish(self, dtype: torch.dtype) -> None:
        """Where no block could be measured with, a product of this dtype is."""
        if self._tools is None or self.found:
            return
        dtype = dtype if dtype in _PRODUCTS else torch.bfloat16
        half = self._most_bytes // 2  # Of what the largest block had, for what is copied.
        size = next((n for n in _SIZES if 3 * n * n * dtype.itemsize <= half), 0)
        if not size:
            self.note = self.note or "not measured: the blocks are too small to tell"
            return
        tools = self._tools
        self._measure(
            (self._device, size, dtype),
            half,
            lambda: _product_work(size, dtype, self._device, tools.timer),
        )

    def _measure(self, key: Any, spare: int, work_of: Callable[[], Work]) -> None:
        tools = self._tools
        assert tools is not None
        if key in _known:
            self.found, self.note = _known[key]
            return
        began = tools.timer.now()
        cpu = torch.get_rng_state()
        gpu = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        try:
            self._run(tools, min(spare, _MOST_SPARE), work_of, began)
            while len(_known) >= _MOST_KNOWN:
                del _known[next(iter(_known))]
            if self.found:
                _known[key] = self.found, self.note
        except Exception as error:  # No figure is worth a training.
            text = f"not measured: {type(error).__name__}: {error}"
            self.note = " ".join(text.split())[:_LONGEST_NOTE]
        finally:
            set_random_state(cpu, gpu, self._device)
            self._spent += tools.timer.now() - began

    def _run(self, tools: Tools, spare: int, work_of: Callable[[], Work], began: float) -> None:
        with contextlib.closing(tools.copies(spare)) as copies:
            if not copies.tiers:
                self.note = "not measured: nothing is lent here"
                return
            work = work_of()
            measurement = Measurement(work, copies, tools.timer)
            measurement.run(began + LIMIT_S - self._spent)
            self.found = measurement.figures()
        spent = self._spent + tools.timer.now() - began
        rounds = f"{measurement.rounds} round{'s' * (measurement.rounds != 1)}"
        if self.found:
            self.note = f"measured with {work.name}, {rounds} in {spent:.2f} s"
        elif not measurement.rounds:
            self.note = f"not measured: no time for {work.name}, after {spent:.2f} s"
        else:
            self.note = f"not measured: no copy outlived {work.name} in {rounds}"


def _may_run_again(info: BlockInfo) -> bool:
    # How often it is run depends on time: ranks that communicate in it would wait for each other.
    return info.keep_reason in ("", "compiled") and not info.collectives and world_size() == 1


def _block_work(
    info: BlockInfo,
    module: nn.Module,
    forward: Callable[..., Any],
    leaves: list[Any],
    spec: Any,
    expected_s: float,
) -> Work:
    def run() -> tuple[Any, list[Any]]:
        given = fresh(leaves)
        passed = [no_leaf(x) if isinstance(x, torch.Tensor) else x for x in given]
        args, kwargs = _pytree.tree_unflatten(passed, spec)
        with passing_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
            return forward(*args, **kwargs), given

    def back(made: tuple[Any, list[Any]]) -> None:
        run_backward(made[0], made[1], module)

    return Work(info.name, run, back, expected_s)


def _product_work(size: int, dtype: torch.dtype, device: torch.device, timer: Timer) -> Work:
    one, other = (torch.full((size, size), 0.5, dtype=dtype, device=device) for _ in range(2))
    made = torch.empty_like(one)

    def once() -> None:
        with torch.no_grad():
            torch.mm(one, other, out=made)

    once()  # Loads kernels and libraries.
    first = timer.mark()
    once()
    alone_s = timer.seconds(first, timer.mark())
    repeats = min(_MOST_REPEATS, math.ceil(_SHORTEST_S / max(alone_s, 1e-6)))

    def work(*_: Any) -> None:
        for _turn in range(repeats):
            once()

    return Work(f"a product of {size}", work, work, 2 * repeats * alone_s)
