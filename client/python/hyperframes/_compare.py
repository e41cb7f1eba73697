"""The same batch in three modes, in one process: what each costs, and why."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from . import _native
from ._backend import make_backend
from ._blocks import discover_blocks
from ._comparison import Comparison, Row, percentile
from ._compiled import replaced_call
from ._config import Size, mode
from ._diagnosis import diagnose
from ._engine import Backend
from ._measured import figures_of, stuck_now
from ._meter import ActivationMeter
from ._observe import ObservedBackend, Recorder, merged
from ._preserve import Fingerprint, Preserved, first_difference, gradients_of
from ._profiler import _autocast, as_arguments, model_device, profile
from ._progress import Progress, progress
from ._refusals import refuse_checkpointing, refuse_outer_hooks, unwrap
from ._session import Session
from .errors import FailedPrecondition, InvalidArgument, ResourceExhausted, ResultsDiffer
from .profile import Profile

NOTHING, CHECKPOINT, HYPERFRAMES = "nothing", "checkpoint", "hyperframes"
MODES = (NOTHING, CHECKPOINT, HYPERFRAMES)
_WARM_UP = 2  # Steps before timed ones: the optimizer's states, the learned order of consumption.


def compare(
    model: nn.Module,
    sample_input: Any,
    *,
    loss_fn: Callable[[Any], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype | None = None,
    budget: Size = None,
    activation_budget: Size = None,
    host_budget: Size = None,
    forbid: Iterable[str] = (),
    pin: Mapping[str, str] | None = None,
    objective: str = "time",
    blocks: Iterable[str] | None = None,
    steps: int = 10,
    tokens: int | None = None,
    modes: Sequence[str] = MODES,
    _backend: Backend | None = None,
    _clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Runs the same batch without HyperFrames, with every block checkpointed, and with HyperFrames.

    Losses of all steps and gradients of the first and the last are proved equal to the last bit
    before any time is reported. Parameters, buffers, gradients, optimizer and random states are
    afterwards as before; what a module keeps beside them is not. Holds a copy of the parameters and
    twice their gradients in host memory. In a group every rank calls it, with the same arguments.

    Args:
        model: in train or eval mode, as it will run.
        sample_input: the forward's input: a tensor, a tuple of arguments, or a dict of keywords.
        loss_fn: from the model's output to the loss, a scalar.
        optimizer: takes a step after each backward, when given.
        dtype: runs under autocast to it, when given.
        budget, activation_budget, host_budget, forbid, pin, objective, blocks: as for
            ``hf.hyperframes``; without a budget the recommended one is used and printed.
        steps: timed steps of each mode; single stalls need at least 4, a period at least 7.
        tokens: in one batch; without it the elements of the first integer tensor of at least two
            dimensions count, else samples.
        modes: of "nothing", "checkpoint", "hyperframes"; the first that fits is the reference.

    Returns:
        A row per mode (one that runs out of memory says so) and the findings of the diagnosis.

    Raises:
        ResultsDiffer: a mode's losses or gradients are not the reference's.
        FailedPrecondition: the model itself gives other results when it is run again; or what
            ``hf.hyperframes`` refuses.
        InvalidArgument: an unknown mode, steps below 1.
    """
    unknown = [name for name in modes if name not in MODES]
    if unknown or not modes:
        raise InvalidArgument(f"modes={list(modes)!r}: choose among {', '.join(MODES)}.")
    if steps < 1:
        raise InvalidArgument(f"steps={steps!r}: time at least one step.")
    if mode() == "off":
        raise FailedPrecondition("HYPERFRAMES_MODE is off: there is nothing to compare with.")
    root = unwrap(model)
    refuse_checkpointing(root, False)
    refuse_outer_hooks()
    device = model_device(root)
    recorder = Recorder(_clock)
    options: dict[str, Any] = {
        "budget": budget, "activation_budget": activation_budget, "host_budget": host_budget,
        "forbid": forbid, "pin": pin, "objective": objective, "blocks": blocks,
    }  # fmt: skip
    run = _Run(model, root, device, sample_input, loss_fn, optimizer, dtype, steps, _clock)
    preserved = run.preserved
    try:
        with torch.enable_grad():
            run.prove_repeatable()
            measured = profile(
                root, sample_input, dtype=dtype, loss_fn=loss_fn, optimizer=optimizer, blocks=blocks
            )
            backend = ObservedBackend(_backend or make_backend(device), recorder)
            trial = _Trial(run, measured, backend, recorder, options)
            with progress("comparing", total=len(modes) * run.steps_of_a_mode, unit="steps") as t:
                return trial.of(list(modes), tokens, t)
    finally:
        preserved.restore()


class _Run:
    """How one step goes, and the state that every mode starts from."""

    def __init__(
        self,
        model: nn.Module,
        root: nn.Module,
        device: torch.device,
        sample_input: Any,
        loss_fn: Callable[[Any], torch.Tensor],
        optimizer: torch.optim.Optimizer | None,
        dtype: torch.dtype | None,
        steps: int,
        clock: Callable[[], float],
    ) -> None:
        self.model, self.root, self.device = model, root, device
        self.args, self.kwargs = as_arguments(sample_input)
        self._loss_fn, self._optimizer, self._dtype = loss_fn, optimizer, dtype
        self.steps = steps
        self.clock = clock
        self.preserved = Preserved(
            root, device, optimizer=optimizer, inputs=(self.args, self.kwargs)
        )

    @property
    def steps_of_a_mode(self) -> int:
        """Warm-up, timed steps, the last one that proves."""
        return _WARM_UP + self.steps + 1

    def forward(self) -> torch.Tensor:
        """The loss of one more forward from cleared gradients."""
        self.preserved.clear_gradients()
        with _autocast(self.device, self._dtype):
            # Nobody holds the output: a loop that does would hold more.
            return self._loss_fn(self.model(*self.args, **self.kwargs))

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        """The rest of the step; the loss, without its graph."""
        torch.autograd.backward(loss)
        if self._optimizer is not None:
            self._optimizer.step()
        return loss.detach()

    def step(self) -> torch.Tensor:
        """One whole step."""
        return self.backward(self.forward())

    def synchronize(self) -> None:
        """What was asked of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def prove_repeatable(self) -> None:
        """FailedPrecondition: two plain steps from one state differ. What does not fit passes."""
        seen: list[Fingerprint] = []
        for _ in range(2):
            self.preserved.rewind()
            try:
                loss = self.step()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return
            seen.append({"loss": loss.cpu(), **gradients_of(self.root)})
        difference = first_difference(*seen)
        if difference:
            raise FailedPrecondition(
                f"The model gives other results when it is run again from the same state, without "
                f"HyperFrames too ({difference}), so modes cannot be proved equal. Use "
                "torch.use_deterministic_algorithms(True); hf.check names the block."
            )


def is_out_of_memory(error: BaseException) -> bool:
    """By torch's class, or by the words that its CPU allocator uses."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't allocate memory", "not enough memory")
    )


@dataclass
class _Seen:
    """What one mode computed, and how long its timed steps took."""

    results: Fingerprint = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    peak: int = 0


class _Trial:
    """All modes of one comparison."""

    def __init__(
        self,
        run: _Run,
        measured: Profile,
        backend: ObservedBackend,
        recorder: Recorder,
        options: dict[str, Any],
    ) -> None:
        self._run = run
        self._profile = measured
        self._backend = backend
        self._recorder = recorder
        self._options = options
        self._session: Session | None = None
        self._stats: dict[str, Any] = {}
        self._stuck: list[Any] = []

    def of(self, modes: list[str], tokens: int | None, tick: Progress) -> Comparison:
        """Rows in the order of ``modes``."""
        count, unit = _units(self._run.args, self._run.kwargs, tokens)
        rows: list[Row] = []
        seen: dict[str, _Seen] = {}
        for name in modes:
            self._run.preserved.rewind()
            found, refusal = self._try(name, tick)
            if refusal is not None or found is None:
                assert refusal is not None
                rows.append(refusal)
                continue
            self._prove(name, found, seen)
            verdict = "bit-equal" if seen else "reference"
            seen[name] = found
            rows.append(self._row(name, found, count, verdict))
        findings = []
        baseline = next((name for name in seen if name != HYPERFRAMES), None)
        if HYPERFRAMES in seen and baseline is not None and self._session is not None:
            figures = figures_of(
                self._session, self._profile, self._backend, self._recorder, self._stats,
                baseline=baseline, baseline_steps=seen[baseline].times,
                baseline_peak=seen[baseline].peak, steps=seen[HYPERFRAMES].times,
                peak=seen[HYPERFRAMES].peak, held=self._stuck,
            )  # fmt: skip
            findings = diagnose(figures)
        return Comparison(rows, findings, unit, self._run.steps, _notes(rows, self._session))

    def _try(self, name: str, tick: Progress) -> tuple[_Seen | None, Row | None]:
        """What the mode did, or the row that says why it did not."""
        try:
            return self._mode(name, tick), None
        except ResourceExhausted as error:
            row = Row(name, "does not fit", str(error))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            row = Row(name, "out of memory", str(error).partition("\n")[0])
        # Out here the exception, its traceback and the frames that hold the step are gone.
        gc.collect()
        if self._run.device.type == "cuda":
            torch.cuda.empty_cache()
        return None, row

    def _mode(self, name: str, tick: Progress) -> _Seen:
        if name == CHECKPOINT:
            with _checkpointed(self._run.root, self._profile, self._options["blocks"]):
                return self._steps(name, tick)
        if name == NOTHING:
            return self._steps(name, tick)
        session = self._session = Session(
            self._run.model, profile=self._profile, _backend=self._backend, **self._options
        )
        with session:
            seen = self._steps(name, tick)
            # Then one more step, looking at who holds what: far too slow to be timed.
            loss = self._run.forward()
            self._stuck = stuck_now(session, self._profile)
            self._run.backward(loss)
        return seen

    def _steps(self, name: str, tick: Progress) -> _Seen:
        run, seen = self._run, _Seen()
        losses: list[torch.Tensor] = []
        with ActivationMeter(run.root) as meter:
            losses.append(run.step())
            seen.results = {f"{key}, first step": g for key, g in gradients_of(run.root).items()}
            tick(name)
            for _ in range(_WARM_UP - 1):
                losses.append(run.step())
                tick(name)
        run.synchronize()
        before = self._counters()
        for _ in range(run.steps):
            self._recorder.begin_step()
            start = run.clock()
            losses.append(run.step())
            run.synchronize()
            seen.times.append(run.clock() - start)
            tick(name)
        if name == HYPERFRAMES:
            self._stats = merged(self._counters(), before, -1)
        with ActivationMeter(run.root) as last:
            losses.append(run.step())
            tick(name)
        for key, gradient in gradients_of(run.root).items():
            seen.results[f"{key}, last step"] = gradient
        for index, loss in enumerate(losses):
            seen.results[f"loss of step {index}"] = loss.cpu()
        seen.peak = max(meter.peak_bytes, last.peak_bytes)
        return seen

    def _counters(self) -> dict[str, Any]:
        if self._session is None:
            return {}
        recompute = self._session.stats()["recompute_s_by_block"]
        return {"engine": self._recorder.stats(), "recompute_s": dict(recompute)}

    @staticmethod
    def _prove(name: str, found: _Seen, seen: dict[str, _Seen]) -> None:
        for reference, other in seen.items():
            order = [key for key in found.results if key.startswith("loss")]
            difference = first_difference(other.results, found.results, order)
            if difference:
                raise ResultsDiffer(
                    f"{name} does not compute what {reference} computes: {difference}. Run "
                    "hf.check(model, sample_input, loss_fn=...), which names the conflict."
                )

    def _row(self, name: str, seen: _Seen, count: int, verdict: str) -> Row:
        median = statistics.median(seen.times)
        row = Row(
            name, verdict, peak_bytes=seen.peak, step_s=median, steps_s=list(seen.times),
            per_second=count / median if median > 0 else 0.0,
            jitter=percentile(seen.times, 0.95) / median if median > 0 else 0.0,
        )  # fmt: skip
        if name == CHECKPOINT:
            row.recomputed_bytes = sum(
                storage.nbytes
                for block in self._profile.blocks
                if not block.keep_reason
                for storage in block.storages
                if not storage.is_input
            )
        if name == HYPERFRAMES and self._session is not None:
            engine = self._stats.get("engine", {})
            row.exposed_wait_s = engine.get("exposed_wait", 0.0) / len(seen.times)
            out = engine.get("bytes_out", {})
            row.moved_bytes = {t: int(out.get(t, 0)) // len(seen.times) for t in ("peer", "host")}
            row.recomputed_bytes = int(self._session.stats()["recomputed_bytes"])
        return row


@contextlib.contextmanager
def _checkpointed(
    root: nn.Module, measured: Profile, names: Iterable[str] | None
) -> Iterator[None]:
    """Every block whose two profiled runs were the same is checkpointed."""
    reasons = {block.name: block.keep_reason for block in measured.blocks}
    kept = {name for name, why in reasons.items() if why and not why.startswith("compiled")}
    with contextlib.ExitStack() as stack:
        for name, module in discover_blocks(root, names).items():
            if name not in kept:
                stack.enter_context(replaced_call(module, _checkpointing))
        yield


def _checkpointing(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*args, **kwargs)
        return checkpoint(original, *args, use_reentrant=False, **kwargs)

    return forward


def _units(args: Any, kwargs: Any, tokens: int | None) -> tuple[int, str]:
    """Tokens of one batch, else samples."""
    if tokens is not None:
        return tokens, "tokens"
    tensors = [x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    for tensor in tensors:
        if tensor.dim() >= 2 and not tensor.is_floating_point() and not tensor.is_complex():
            return tensor.numel(), "tokens"
    return (int(tensors[0].shape[0]) if tensors and tensors[0].dim() else 1), "samples"


def _notes(rows: list[Row], session: Session | None) -> list[str]:
    reference = next((row for row in rows if row.verdict == "reference"), None)
    notes = []
    if reference is not None and any(row.verdict == "bit-equal" for row in rows):
        notes.append(
            f"Losses of every step, and gradients of the first and last, are {reference.mode}'s to "
            "the last bit."
        )
    budget = session.stats()["activation_budget"] if session is not None else None
    if budget is not None:
        notes.append(f"activation_budget of hyperframes: {_native.format_bytes(budget)}.")
    return notes
