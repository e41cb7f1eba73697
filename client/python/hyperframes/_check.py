"""Does HyperFrames change what this model computes, and if so, which two things do not go together?

Plain first, then one block, then everything, then features off one at a time, then the model's own
suspects one at a time. Every run starts from the same state and is compared bit for bit.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import torch
from torch import nn

from ._backend import EmbeddedBackend
from ._blocks import discover_blocks
from ._check_report import (
    DIFFERENT,
    EQUAL,
    ERROR,
    CheckReport,
    CheckRun,
    Culprit,
    remedy_for,
)
from ._config import mode
from ._engine import Backend
from ._forced import (
    HOST,
    PEER,
    RECOMPUTE,
    ForcedBackend,
    arrangements,
    available,
)
from ._group import world_size
from ._measure_operators import every_operator
from ._preserve import Fingerprint, Preserved, first_difference, gradients_of
from ._profiler import _autocast, as_arguments, model_device, profile
from ._progress import Progress, progress
from ._refusals import unwrap
from ._search import minimal
from ._session import Session
from ._suspects import (
    Suspect,
    all_off,
    first_unequal_call,
    stashes,
    suspects,
    traced,
    watched_saves,
)
from .errors import FailedPrecondition, HyperFramesError, RecomputeMismatch
from .profile import Profile

_STEPS = 2  # The second one follows the order of consumption that the first taught.
_MOST_RUNS = 400
_PLENTY = 1 << 60  # An activation budget that binds nothing: plans are made by order.
_MOVERS = (PEER, HOST)
_OFFLOAD = "offload"  # Both movers alike.


def check(
    model: nn.Module,
    sample_input: Any,
    *,
    loss_fn: Callable[[Any], torch.Tensor],
    dtype: torch.dtype | None = None,
    blocks: Iterable[str] | None = None,
    allow_checkpointing: bool = False,
    _backend: Backend | None = None,
) -> CheckReport:
    """Finds out whether HyperFrames changes a bit of this model's losses or gradients, and why.

    The plain run is made twice, then one block is put under HyperFrames with every feature forced
    on, then all blocks, then features are switched off one at a time; where results differ, blocks
    and the model's own hooks, dropout, in-place and compiled modules are left out one at a time
    until the smallest conflicting pair is left. Each run is two forwards and backwards. Parameters,
    buffers, gradients and random states are afterwards as before. Moves frames on GPUs and host
    memory that this process sees, also in a coordinator's job.

    Args:
        model: in the mode (train or eval) in which it will run.
        sample_input: the forward's input: a tensor, a tuple of arguments, or a dict of keywords.
        loss_fn: from the model's output to the loss, a scalar.
        dtype: runs under autocast to it, when given.
        blocks: dotted names, as for ``hf.hyperframes``.
        allow_checkpointing: as for ``hf.hyperframes``.

    Returns:
        The runs with their verdicts, the culprit, warnings. An error that a run raises is a verdict
        and does not leave this function.

    Raises:
        FailedPrecondition: HYPERFRAMES_MODE is off, several ranks, a model without parameters.
        InvalidArgument: an unknown block.
    """
    if mode() == "off":
        raise FailedPrecondition("HYPERFRAMES_MODE is off: there is nothing to check.")
    if world_size() > 1:
        raise FailedPrecondition(
            f"hf.check runs in one process and this group has {world_size()}: what one rank finds "
            "decides its next run, and the others would wait. Run it without torchrun."
        )
    root = unwrap(model)
    device = model_device(root)
    bench = _Bench(
        model, root, device, sample_input, loss_fn, dtype,
        discover_blocks(root, blocks), allow_checkpointing,
    )  # fmt: skip
    try:
        with (
            torch.enable_grad(),
            warnings.catch_warnings(),
            progress("checking", unit="runs") as tick,
        ):
            warnings.simplefilter("ignore")
            bench.tick = tick
            return _Check(bench, _backend or EmbeddedBackend(device)).report()
    finally:
        bench.preserved.restore()


class _Bench:
    """Runs the model in one way or another, always from the same state."""

    def __init__(
        self,
        model: nn.Module,
        root: nn.Module,
        device: torch.device,
        sample_input: Any,
        loss_fn: Callable[[Any], torch.Tensor],
        dtype: torch.dtype | None,
        blocks: dict[str, nn.Module],
        allow_checkpointing: bool,
    ) -> None:
        self.model, self.root, self.device = model, root, device
        self.sample_input = sample_input
        self.args, self.kwargs = as_arguments(sample_input)
        self.loss_fn = loss_fn
        self.dtype = dtype
        self.blocks = blocks
        self.allow_checkpointing = allow_checkpointing
        self.preserved = Preserved(root, device, inputs=(self.args, self.kwargs))
        self.tick: Progress | None = None
        self.profile: Profile | None = None

    def forward(self) -> torch.Tensor:
        """The loss of one forward."""
        self.preserved.clear_gradients()
        with _autocast(self.device, self.dtype):
            return self.loss_fn(self.model(*self.args, **self.kwargs))

    def steps(self) -> Fingerprint:
        """Losses and gradients of a few steps from here."""
        found: Fingerprint = {}
        for step in range(_STEPS):
            loss = self.forward()
            torch.autograd.backward(loss)
            found[f"loss of step {step}"] = loss.detach().cpu()
            for name, gradient in gradients_of(self.root).items():
                found[f"{name}, step {step}"] = gradient
            del loss
        return found

    def plain(self) -> Fingerprint:
        """Without HyperFrames."""
        self._begin("plain")
        return self.steps()

    def framed(
        self, backend: Backend, features: Set[str], blocks: Set[str], arrangement: str
    ) -> Fingerprint:
        """With these features forced on in these blocks."""
        self._begin(f"{arrangement}, {len(blocks)} blocks")
        session = Session(
            self.model,
            profile=self.profile,
            blocks=list(self.blocks),
            activation_budget=_PLENTY,
            verify=True,
            allow_checkpointing=self.allow_checkpointing,
            _backend=ForcedBackend(backend, features, blocks, arrangement),
        )
        with session:
            return self.steps()

    def measure(self) -> Profile:
        """hf.profile from the state in which every run starts."""
        self._begin("profile")
        with every_operator():
            return profile(
                self.root, self.sample_input, dtype=self.dtype, loss_fn=self.loss_fn,
                blocks=list(self.blocks), allow_checkpointing=self.allow_checkpointing,
            )  # fmt: skip

    def _begin(self, what: str) -> None:
        self.preserved.rewind()
        if self.tick is not None:
            self.tick(what)


class _Check:
    """The order of the runs, and what follows from them."""

    def __init__(self, bench: _Bench, backend: Backend) -> None:
        self._bench = bench
        self._backend = backend
        self._runs: list[CheckRun] = []
        self._reference: Fingerprint = {}
        self._known: dict[tuple[frozenset[str], frozenset[str]], CheckRun] = {}
        self._count = 0

    def report(self) -> CheckReport:
        """All of it."""
        report = CheckReport(self._runs)
        report.culprit = self._plain() or self._measure()
        if report.culprit is not None:
            return report
        report.notes = self._notes()
        report.warnings = self._warnings()
        features = available(self._backend)
        names = list(self._bench.blocks)
        one = [self._typical()]
        alone = self._try(f"one block ({one[0]}), every feature", features, one)
        full = self._try("every block, every feature", features, names)
        if alone.verdict == full.verdict == EQUAL:
            return report
        blocks = names if full.verdict != EQUAL else one
        report.culprit = self._conflict(features, blocks)
        return report

    # ---- Without HyperFrames ----

    def _plain(self) -> Culprit | None:
        try:
            self._reference = self._bench.plain()
        except Exception as error:
            message = _message(error)
            self._runs.append(CheckRun("plain", ERROR, message))
            remedy = "mend the model or the sample first: HyperFrames is not involved."
            return Culprit("plain run", type(error).__name__, "", message, remedy)
        again = self._bench.plain()
        difference = first_difference(self._reference, again)
        self._runs.append(CheckRun("plain", EQUAL))
        self._runs.append(CheckRun("plain, again", DIFFERENT if difference else EQUAL, difference))
        return self._unrepeatable(difference) if difference else None

    def _unrepeatable(self, difference: str) -> Culprit:
        bench = self._bench
        calls = []
        for _ in range(2):
            bench.preserved.rewind()
            with traced(bench.root) as seen:
                bench.forward()
            calls.append(seen)
        name = first_unequal_call(*calls)
        why = f"two runs from one state differ without HyperFrames ({difference})"
        part = f"module {name}" if name else "an operator of the backward"
        if name:
            why += f"; {name} gave other outputs for equal inputs"
        operator = self._nondeterministic_operator()
        if operator:
            part, why = f"{part} ({operator})", f"{why}; PyTorch knows {operator} as such"
        remedy = (
            "torch.use_deterministic_algorithms(True), torch's own generators instead of others, "
            "no state that one step leaves to the next."
        )
        return Culprit("plain run", part, self._block_of(name), why, remedy)

    def _nondeterministic_operator(self) -> str:
        """As torch names it, where it knows one among those that ran."""
        before = torch.are_deterministic_algorithms_enabled()
        warn = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            self._bench.plain()
        except RuntimeError as error:
            text = str(error)
            if "deterministic" in text:
                return text.partition(" does not have")[0][:80]
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn)
        return ""

    def _block_of(self, module: str) -> str:
        inside = (b for b in self._bench.blocks if module == b or module.startswith(f"{b}."))
        return next(inside, "")

    def _measure(self) -> Culprit | None:
        try:
            self._bench.profile = self._bench.measure()
        except Exception as error:
            self._runs.append(CheckRun("profile", ERROR, _message(error)))
            remedy = "as the message says."
            return Culprit("profile", type(error).__name__, "", _message(error), remedy)
        return None

    def _typical(self) -> str:
        """A block of the most frequent class: what most layers are."""
        kinds = Counter(type(module).__name__ for module in self._bench.blocks.values())
        most = kinds.most_common(1)[0][0]
        return next(n for n, m in self._bench.blocks.items() if type(m).__name__ == most)

    def _notes(self) -> list[str]:
        assert self._bench.profile is not None
        return [
            f"{block.name} is never recomputed: {block.keep_reason}."
            for block in self._bench.profile.blocks
            if block.keep_reason and block.name in self._bench.blocks
        ]

    def _warnings(self) -> list[Culprit]:
        bench = self._bench
        found: dict[tuple[str, str], Culprit] = {}
        bench.preserved.rewind()
        with stashes(bench.blocks) as kept:
            bench.forward()
        for stash in kept:
            part = f"ctx.{stash.attribute} of {stash.function}"
            found[stash.block, part] = Culprit(
                "memory", part, stash.block,
                f"{stash.nbytes} bytes stay where they are: what a Function keeps on ctx never "
                "reaches the hooks, so it is neither moved nor recomputed",
                "save it with ctx.save_for_backward.",
            )  # fmt: skip
        for change in self._changes():
            shape = "x".join(map(str, change.shape)) or "scalar"
            part = f"in-place change of a saved {change.dtype} {shape}"
            found[change.block, part] = Culprit(
                "offload", part, change.block,
                "it was written to after it had been saved, past autograd's version counter "
                "(.data or a detached alias): backward reads the new bytes here and the old ones "
                "where it was moved",
                "change a clone instead.",
            )  # fmt: skip
        return list(found.values())

    def _changes(self) -> list[Any]:
        bench = self._bench
        bench.preserved.rewind()
        try:
            with watched_saves(bench.blocks) as changed:
                torch.autograd.backward(bench.forward())
        except Exception:
            return []  # Somebody else's hooks: the runs tell.
        return changed

    # ---- With it ----

    def _try(self, name: str, features: Sequence[str], blocks: Sequence[str]) -> CheckRun:
        """A run that the report shows."""
        run = self._run(name, features, blocks)
        self._runs.append(run)
        return run

    def _run(
        self,
        name: str,
        features: Sequence[str],
        blocks: Sequence[str],
        reference: Fingerprint | None = None,
    ) -> CheckRun:
        key = frozenset(features), frozenset(blocks)
        if reference is None and key in self._known:
            known = self._known[key]
            return CheckRun(name, known.verdict, known.detail)
        run = CheckRun(name, EQUAL)
        for arrangement in arrangements(key[0]):
            self._count += 1
            try:
                found = self._bench.framed(self._backend, key[0], key[1], arrangement)
            except Exception as error:
                run = CheckRun(name, ERROR, _message(error))
                break
            difference = first_difference(reference or self._reference, found)
            if difference:
                run = CheckRun(name, DIFFERENT, difference)
                break
        if reference is None:
            self._known[key] = run
        return run

    def _fails(self, features: Sequence[str], blocks: Sequence[str]) -> bool:
        if self._count >= _MOST_RUNS:
            return False  # The smallest so far has to do.
        return self._run("", features, blocks).verdict != EQUAL

    def _conflict(self, features: list[str], blocks: list[str]) -> Culprit:
        for feature in features:
            self._try(f"without {feature}", [f for f in features if f != feature], blocks)
        nothing = self._try("no feature, hooks only", [], blocks)
        if nothing.verdict != EQUAL:
            return self._hooks_alone(nothing, blocks)
        few = minimal(features, lambda chosen: self._fails(chosen, blocks))
        where = minimal(blocks, lambda chosen: self._fails(few, chosen))
        last = self._try(f"{' and '.join(few)}, {_some(where)}", few, where)
        feature = self._feature(few, where)
        part = self._part(few, where)
        remedy = remedy_for(list(_MOVERS) if feature == _OFFLOAD else few, part)
        why = last.detail or "results differ"
        if part is not None:
            return Culprit(feature, part.name, ", ".join(where[:3]), why, remedy)
        return self._by_nature(feature, few, where, why, remedy)

    def _hooks_alone(self, run: CheckRun, blocks: list[str]) -> Culprit:
        where = minimal(blocks, lambda chosen: self._fails([], chosen))
        return Culprit(
            "saved-tensor hooks",
            "the model's own way of saving",
            ", ".join(where[:3]) if len(where) < len(blocks) else "",
            run.detail,
            "as the message says; HYPERFRAMES_MODE=off runs the script without HyperFrames.",
        )

    def _feature(self, few: list[str], where: list[str]) -> str:
        """ "offload" where it does not matter to whom."""
        if len(few) == 1 and few[0] in _MOVERS:
            (other,) = set(_MOVERS) - set(few)
            if other in available(self._backend) and self._fails([other], where):
                return _OFFLOAD
        return " with ".join(few)

    def _part(self, few: list[str], where: list[str]) -> Suspect | None:
        """What of the model's must be left out so that the results are equal."""
        candidates = suspects(self._bench.root)
        if self._bench.dtype not in (None, torch.float32):
            candidates.append(Suspect("autocast", self._without_autocast))
        if not candidates or not self._equal_without(few, where, candidates):
            return None
        if len(candidates) > 1:
            # The smallest set without which it works: together they "fail" to conflict.
            candidates = minimal(
                candidates, lambda chosen: self._equal_without(few, where, list(chosen))
            )
        names = " and ".join(candidate.name for candidate in candidates[:3])
        self._runs.append(CheckRun(f"the same without {names}", EQUAL))
        return Suspect(names, candidates[0].off)

    @contextlib.contextmanager
    def _without_autocast(self) -> Any:
        before, self._bench.dtype = self._bench.dtype, None
        try:
            yield
        finally:
            self._bench.dtype = before

    def _equal_without(
        self, few: Sequence[str], where: Sequence[str], chosen: list[Suspect]
    ) -> bool:
        if self._count >= _MOST_RUNS:
            return False
        bench, before = self._bench, self._bench.profile
        with all_off(chosen):
            try:
                reference = bench.plain()
                bench.profile = bench.measure()  # Other tensors are saved without it.
                return self._run("", few, where, reference).verdict == EQUAL
            except Exception:
                return False  # The model does not run without it.
            finally:
                bench.profile = before

    def _by_nature(
        self, feature: str, few: list[str], where: list[str], why: str, remedy: str
    ) -> Culprit:
        """Nothing could be left out: by what the tensors and the block itself show."""
        block = ", ".join(where[:3])
        changed = [change for change in self._changes() if change.block in where]
        if changed and RECOMPUTE not in few:
            shape = "x".join(map(str, changed[0].shape)) or "scalar"
            part = f"in-place change of a saved {changed[0].dtype} {shape}"
            return Culprit(feature, part, changed[0].block, why, remedy)
        if "in place" in why or "inplace" in why:
            return Culprit(feature, "in-place change after saving", block, why, remedy)
        if few == [RECOMPUTE]:
            part = "state that changes between forward and backward"
            return Culprit(feature, part, block, why, remedy)
        return Culprit(feature, "the block's own code", block, why, remedy)


def _some(blocks: list[str]) -> str:
    return ", ".join(blocks[:3]) + (f" and {len(blocks) - 3} more" if len(blocks) > 3 else "")


def _message(error: BaseException) -> str:
    kind = type(error).__name__
    ours = isinstance(error, HyperFramesError) and not isinstance(error, RecomputeMismatch)
    text = " ".join(str(error).split())
    return text if ours and text else f"{kind}: {text}"
