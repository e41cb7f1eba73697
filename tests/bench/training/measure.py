"""Modes measured turn by turn, A B C, A B C: a drifting clock drifts under all of them alike."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

import hyperframes as hf

from .report import word_of
from .workload import Workload


class OutOfTimeError(Exception):
    """A mode took longer than its limit."""


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """OutOfTimeError after so many seconds of Python; a call that never returns ends the process,
    with a traceback of every thread, half a minute later."""

    def ring(*_: Any) -> None:
        raise OutOfTimeError(f"{what}: more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + 30, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Mode(Protocol):
    """How the model's step is run."""

    name: str
    references: tuple[str, ...]  # It has to have the gradients of the first of these that runs.
    must_be_equal: bool

    def prepare(self, meter: Meter) -> None:
        """Once, before the first turn; raises what makes the mode impossible here."""
        ...

    def entered(self) -> contextlib.AbstractContextManager[Any]: ...

    def figures(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclass
class Measured:
    """What one mode did in all its turns."""

    mode: Mode
    rounds: list[list[float]] = field(default_factory=list)  # Seconds of each step.
    totals: list[float] = field(default_factory=list)  # Seconds per step of each round.
    peak: int = 0
    verdict: str = "not compared"
    failure: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Only a mode whose gradients are right has a time."""
        return not self.failure and (
            not self.mode.must_be_equal or self.verdict in ("reference", "bit-equal")
        )


class Meter:
    """Peaks, times and fingerprints on one device."""

    def __init__(self, workload: Workload, device: torch.device, *, warms: bool = True) -> None:
        self._workload = workload
        self._device = device
        self._cuda = device.type == "cuda"
        self.warms = warms
        self._activations: hf.ActivationMeter | None = None
        self._weights = sum(_bytes_of(p) for p in workload.model.parameters())
        self._gradients = 0  # Bytes that this backward has made so far.
        self._highest = 0

    @property
    def model(self) -> nn.Module:
        return self._workload.model

    def step(self) -> None:
        """Forward and backward; gradients stay."""
        torch.autograd.backward(self._workload.loss())

    def clear(self) -> None:
        """Drops gradients."""
        self._note()
        self._gradients = 0
        self.model.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Around everything that a mode does; on a processor its saved bytes are counted."""
        if self._cuda:
            torch.cuda.empty_cache()
            yield
            return
        with contextlib.ExitStack() as stack:
            self._activations = stack.enter_context(hf.ActivationMeter(self.model))
            stack.callback(setattr, self, "_activations", None)
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    watched: Any = parameter
                    hook = watched.register_post_accumulate_grad_hook(self._made)
                    stack.callback(hook.remove)
            yield

    def _made(self, parameter: torch.Tensor) -> None:
        self._note()
        self._gradients += _bytes_of(parameter)

    def _note(self) -> None:
        """Closes the span in which there were as many gradients as now."""
        if self._activations is not None:
            self._highest = max(self._highest, self._activations.reset_peak() + self._gradients)

    def start_peak(self) -> None:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        self._note()
        self._highest = 0

    def peak(self) -> int:
        """Bytes: the allocator's on a GPU; on a processor weights, gradients and what is saved for
        backward."""
        if self._cuda:
            return torch.cuda.max_memory_allocated(self._device)
        self._note()
        return self._weights + self._highest

    def warm_peak(self) -> int:
        """The peak of a step after a warm one, or of the first where no step is to be spent."""
        if self.warms:
            self.step()
            self.clear()
        self.start_peak()
        self.step()
        self.clear()
        self.synchronize()
        return self.peak()

    def timed(self, steps: int) -> tuple[list[float], float]:
        """Seconds of each step, and per step from the first's start to the last's end. Nobody waits
        for a GPU in between."""
        if not self._cuda:
            marks = [time.perf_counter()]
            for _ in range(steps):
                self.step()
                self.clear()
                marks.append(time.perf_counter())
            return _differences(marks), (marks[-1] - marks[0]) / steps
        self.synchronize()
        events = [timing_event() for _ in range(steps + 1)]
        events[0].record()
        for event in events[1:]:
            self.step()
            event.record()
            self.clear()
        self.synchronize()
        each = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]
        return each, events[0].elapsed_time(events[-1]) / 1e3 / steps

    def fingerprint(self) -> torch.Tensor:
        """Two sums over the bits of every gradient of one step with repeatable kernels: equal bits,
        equal sums."""
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)  # Flash attention ignores warn_only.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            self.step()
        finally:
            torch.use_deterministic_algorithms(before)
        sums = []
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                sums += bit_sums(parameter.grad)
        self.clear()
        self.synchronize()
        return torch.stack(sums).cpu()


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def timing_event() -> torch.cuda.Event:
    """Not yet recorded."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def bit_sums(gradient: torch.Tensor) -> list[torch.Tensor]:
    """Two sums over the bits of a tensor, or of this rank's shard of it."""
    full = getattr(gradient, "to_local", lambda: gradient)()
    whole = torch.int16 if full.element_size() == 2 else torch.int32
    bits = full.detach().contiguous().view(whole).flatten()
    total = torch.zeros(2, dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), 1 << 24):  # Little memory beside a full GPU.
        part = bits[start : start + (1 << 24)].to(torch.int64)
        place = torch.arange(start, start + part.numel(), device=bits.device) % 65521 + 1
        total += torch.stack([part.sum(), (part * place).sum()])
    return list(total)


def _differences(marks: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(marks)]


@dataclass
class Plan:
    """How many rounds of how many steps, and how long a mode may take for any of it."""

    rounds: int = 3
    steps: int = 3
    warm: int = 1
    patience_s: float = 120.0
    repeat_proof: bool = True  # The reference has to have the same gradients twice.
    early: bool = False  # The first round's turn of a mode follows its proof: of long steps few.
    together: Callable[[str], None] = lambda what: None  # A barrier, where several processes run.


def measure(
    modes: list[Mode],
    meter: Meter,
    plan: Plan,
    *,
    say: Callable[[str], None],
    keep_going: Callable[[], bool] = lambda: True,
    note: Callable[[list[Measured]], None] = lambda found: None,
) -> list[Measured]:
    """Prepares each mode, proves its gradients, then times all of them in rounds.

    Args:
        keep_going: asked before every round after the first; False ends with the rounds there are.
        note: gets what was measured so far, after every round and every early turn.
    """
    found = [Measured(mode) for mode in modes]
    prints: dict[str, torch.Tensor] = {}

    def turn(one: Measured, number: int) -> None:
        plan.together(f"round {number} of {one.mode.name}")
        if one.counts:
            with _contained(one, meter, plan, say):
                _take_turn(one, meter, plan)
            if not one.failure:
                say(_line(number, one, meter))

    for one in found:
        plan.together(f"proof of {one.mode.name}")
        with _contained(one, meter, plan, say):
            _prove(one, meter, prints, plan.repeat_proof)
        say(f"  {one.mode.name}: gradients {one.failure or one.verdict}")
        if plan.early:
            turn(one, 0)
            note(found)
    for number in range(int(plan.early), plan.rounds):
        if number and not keep_going():
            say(f"  out of time after {number} of {plan.rounds} rounds")
            break
        for one in found:
            turn(one, number)
        note(found)
    for one in found:
        with contextlib.suppress(Exception):
            one.mode.close()
    return found


def _prove(one: Measured, meter: Meter, prints: dict[str, torch.Tensor], repeat: bool) -> None:
    mode = one.mode
    mode.prepare(meter)
    reference = next((name for name in mode.references if name in prints), None)
    with meter.turn(), mode.entered():
        mine = meter.fingerprint()
        again = meter.fingerprint() if reference is None and repeat else mine
    if reference is not None:
        one.verdict = "bit-equal" if torch.equal(mine, prints[reference]) else "different"
    elif mode.name in mode.references:
        one.verdict = "reference" if torch.equal(mine, again) else "not repeatable"
    if mode.name in mode.references and one.counts:
        prints[mode.name] = mine


def _take_turn(one: Measured, meter: Meter, plan: Plan) -> None:
    with meter.turn(), one.mode.entered():
        for _ in range(plan.warm):
            meter.step()
            meter.clear()
        meter.synchronize()
        plan.together(f"steps of {one.mode.name}")
        meter.start_peak()
        each, total = meter.timed(plan.steps)
        one.peak = max(one.peak, meter.peak())
    one.figures = one.mode.figures()
    one.rounds.append(each)
    one.totals.append(total)


@contextlib.contextmanager
def _contained(
    one: Measured, meter: Meter, plan: Plan, say: Callable[[str], None]
) -> Iterator[None]:
    """What goes wrong in a mode is the mode's own end, not the others'."""
    try:
        with time_limit(plan.patience_s, one.mode.name):
            yield
    except Exception as error:
        kind = (
            "out of memory" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__
        )
        text = "" if kind == "out of memory" else f": {str(error)[:400]}"
        one.failure = kind + text
        if kind not in ("out of memory", "ResourceExhausted", "SkippedError"):
            say("".join(traceback.format_exception(error))[-3000:])
        say(f"  {one.mode.name}: {one.failure}")
        forget_frames(error)
    if one.failure:
        with contextlib.suppress(Exception):
            one.mode.close()
        meter.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def forget_frames(error: BaseException) -> None:
    """Of the error and those before it: they hold the graph, and with it the memory."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__context__ or seen.__cause__


class SkippedError(Exception):
    """The mode is not for this machine or length; says why."""


def _line(number: int, one: Measured, meter: Meter) -> str:
    steps = " ".join(f"{1e3 * s:.1f}" for s in one.rounds[-1])
    return (
        f"  round {number} {one.mode.name:<28} {1e3 * one.totals[-1]:9.1f} ms/step"
        f"  peak {one.peak / 1e9:7.3f} GB  steps {steps}"
    )


def median_ratio(mode: Measured, reference: Measured) -> float | None:
    """Throughput of one against the other: per round, then the median."""
    pairs = list(zip(reference.totals, mode.totals, strict=False))
    if not pairs or not mode.counts:
        return None
    return statistics.median(theirs / mine for theirs, mine in pairs)


def row_of(one: Measured, everybody: list[Measured], tokens: int) -> dict[str, Any]:
    """The JSON row of one mode, with its ratios against the references of its call."""
    row: dict[str, Any] = {"mode": one.mode.name, "gradients": one.verdict}
    if one.failure:
        return {**row, "failed": one.failure}
    if not one.totals:
        return {**row, "failed": f"gradients {one.verdict}: not timed"}
    each = sorted(s for steps in one.rounds for s in steps)
    median = statistics.median(one.totals)
    row |= {
        "tokens_per_s": tokens / median,
        "peak_gb": one.peak / 1e9,
        "peak_bytes": one.peak,
        "step_ms": [[1e3 * s for s in steps] for steps in one.rounds],
        "round_ms": [1e3 * s for s in one.totals],
        "jitter": each[min(len(each) - 1, int(0.95 * len(each)))] / statistics.median(each),
        "throughput_vs": {},
        "peak_vs": {},
    }
    for other in everybody:
        if other.totals and other.counts and other.mode.name in one.mode.references:
            ratio = median_ratio(one, other)
            if ratio is not None:
                row["throughput_vs"][other.mode.name] = ratio
                row["peak_vs"][other.mode.name] = one.peak / other.peak
    return {**row, **one.figures}


def summary(row: dict[str, Any]) -> str:
    """A line for people."""
    head = f"  {word_of(row['length']):>5} {row['mode']:<28}"
    if "failed" in row:
        return f"{head} {row['failed']}"
    versus = " ".join(f"{k} {v:.3f}x" for k, v in row["throughput_vs"].items())
    peaks = " ".join(f"{k} {v:.3f}x" for k, v in row["peak_vs"].items())
    return (
        f"{head} {row['tokens_per_s']:9.0f} tokens/s  peak {row['peak_gb']:7.2f} GB"
        f"  jitter {row['jitter']:.3f}  {row['gradients']}  speed: {versus}  peak: {peaks}"
    )
