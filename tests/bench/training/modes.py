"""The ways to run a step that are compared."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import hyperframes as hf
from gpus import twin

from .hyper import NOTHING_AGAIN, HyperMode
from .measure import Measured, Meter, SkippedError
from .offload import InputsOnHost, on_demand_offload
from .workload import Workload

aten = torch.ops.aten
ATTENTION = frozenset(
    {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
MATMUL = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default})

Enter = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass
class SimpleMode:
    """A mode that is a context around the step."""

    name: str
    enter: Enter
    references: tuple[str, ...] = ("nothing", "checkpoint")
    must_be_equal: bool = False
    # Bytes of pinned memory that a step takes, asked before the first one.
    host_bytes: Callable[[], int] | None = None

    def prepare(self, meter: Meter) -> None:
        if self.host_bytes is not None:
            needed, free = self.host_bytes(), available_host_bytes()
            if needed > 0.85 * free:
                raise SkippedError(
                    f"needs {needed / 1e9:.0f} GB of host memory, {free / 1e9:.0f} free"
                )

    def entered(self) -> contextlib.AbstractContextManager[Any]:
        return self.enter()

    def figures(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        if self.host_bytes is not None and torch.cuda.is_available():
            torch._C._host_emptyCache()


@dataclass
class HyperFramesMode:
    """HyperFrames under a budget that is a factor of the peak of checkpointing."""

    name: str
    workload: Workload
    profile: Callable[[], hf.Profile]
    forbid: tuple[str, ...]
    factor: float
    checkpoint_peak: Callable[[Meter], int]
    references: tuple[str, ...] = ("nothing", "checkpoint")
    must_be_equal: bool = True
    tries: int = 2
    enter: Enter = contextlib.nullcontext  # Compiled blocks, where the mode has them.
    options: dict[str, Any] = field(default_factory=dict)
    needs_peer: bool = False
    _hyper: HyperMode | None = None

    def prepare(self, meter: Meter) -> None:
        device = next(self.workload.model.parameters()).device
        if self.needs_peer and device.type == "cuda" and twin.gpus() < 2:
            raise SkippedError("needs a second GPU")
        limit = int(self.factor * self.checkpoint_peak(meter))
        with self.enter():
            profile = self.profile()
        self._hyper = HyperMode(
            self.workload, profile, forbid=self.forbid, limit=limit, **self.options
        )

        def peak() -> int:
            return meter.warm_peak()

        with meter.turn(), self.enter():
            self._hyper.fit(peak, self.tries)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        assert self._hyper is not None
        with self.enter(), self._hyper.entered():
            yield

    def figures(self) -> dict[str, Any]:
        assert self._hyper is not None
        return {"limit_bytes": self._hyper.limit, **self._hyper.figures()}

    def close(self) -> None:
        if self._hyper is not None:
            self._hyper.close()


class Modes:
    """Makes the modes of one workload at its present length.

    Args:
        compile_backend: of torch.compile for the ``_compiled`` modes.
        peaks: factors of the checkpoint mode's peak that peer and host may reach.
    """

    def __init__(
        self,
        workload: Workload,
        device: torch.device,
        *,
        compile_backend: str = "inductor",
        peer_factor: float = 1.05,
        host_factor: float = 1.10,
        tries: int = 2,
        hyper_options: dict[str, Any] | None = None,
    ) -> None:
        self._workload = workload
        self._device = device
        self._compile_backend = compile_backend
        self._factors = {"peer": peer_factor, "host": host_factor}
        self._tries = tries
        self._options = hyper_options or {}
        self._checkpoint_peaks: dict[str, int] = {}
        self._profiles: dict[tuple[str, float], hf.Profile] = {}
        self._compiled: dict[float, list[Any]] = {}
        self._inputs = InputsOnHost(device)

    NAMES = (
        "nothing", "checkpoint", "checkpoint_inputs_on_host", "selective_attention",
        "selective_attention_matmul", "offload_activations", "save_on_cpu",
        "peer", "peer_only", "host", "auto",
        "nothing_compiled", "checkpoint_compiled", "memory_budget_25_compiled",
        "memory_budget_50_compiled", "memory_budget_75_compiled",
        "peer_compiled", "host_compiled", "auto_compiled",
        # Blocks compiled under torch's budget, and what they still save is moved.
        "peer_budget_75_compiled", "host_budget_75_compiled", "auto_budget_75_compiled",
    )  # fmt: skip
    HOST_HEAVY = ("offload_activations", "save_on_cpu", "host", "auto")
    HYPER = ("peer", "peer_only", "host", "auto")

    def is_host_heavy(self, name: str) -> bool:
        """It pins as much host memory as activations: one such mode at a time."""
        return _plain(name)[0] in self.HOST_HEAVY

    def bouts(self, names: list[str]) -> list[list[str]]:
        """Modes that are measured side by side: all light ones together, and each mode that pins
        much host memory with its references only. References are added where none was asked for."""
        light = [name for name in names if not self.is_host_heavy(name)]
        heavy = [name for name in names if self.is_host_heavy(name)]
        found = [light] if light else []
        for name in heavy:
            # Auto keeps its leases on peers, pinned memory and all: no room for the peer modes.
            if light and name is heavy[0] and not name.startswith("auto"):
                light.append(name)
                continue
            found.append([r for r in self.make(name).references if r in names] + [name])
        for bout in found:
            for name in list(bout):
                references = self.make(name).references
                if not set(references) & set(bout):
                    bout[:0] = references
        return found

    def make(self, name: str) -> Any:
        """The mode of that name. KeyError: there is none."""
        base, suffix, budget = _plain(name)
        references = (f"nothing{suffix}", f"checkpoint{suffix}")
        around = self._compiling(budget) if suffix else contextlib.nullcontext
        if base in self.HYPER:
            return self._hyper(name, base, references, around)
        simple = functools.partial(SimpleMode, name, references=references)
        if base in ("nothing", "checkpoint"):
            inner: Enter = (
                contextlib.nullcontext if base == "nothing" else self._workload.checkpointing
            )
            return simple(_both(around, inner), must_be_equal=True)
        return simple(around) if base == "memory" else simple(**self._others()[base])

    def _others(self) -> dict[str, dict[str, Any]]:
        pin = self._device.type == "cuda"
        return {
            "checkpoint_inputs_on_host": {"enter": self._inputs_on_host},
            "selective_attention": {"enter": self._selective(ATTENTION)},
            "selective_attention_matmul": {"enter": self._selective(ATTENTION | MATMUL)},
            "offload_activations": {
                "enter": lambda: on_demand_offload(self._workload.model, self._device),
                "host_bytes": lambda: self._saved_bytes(parameters=False),
            },
            "save_on_cpu": {
                "enter": lambda: save_on_cpu(pin_memory=pin),
                "host_bytes": lambda: self._saved_bytes(parameters=True),
            },
        }

    def _selective(self, saved: frozenset[Any]) -> Enter:
        def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            if operator in saved:
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return lambda: self._workload.checkpointing(context_fn=contexts)

    def _inputs_on_host(self) -> contextlib.AbstractContextManager[Any]:
        first = self._workload.blocks()[0]

        def call(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
            if block is first:
                self._inputs.begin()
            with self._inputs.hooks():
                result: torch.Tensor = checkpoint(block, x, use_reentrant=False)
            return result

        return self._workload.around(call)

    def _hyper(
        self, name: str, base: str, references: tuple[str, ...], around: Enter
    ) -> HyperFramesMode:
        forbid = {"peer": ("host",), "peer_only": ("host", *NOTHING_AGAIN), "host": ("peer",)}
        kind = "host" if base == "host" else "peer"

        _, suffix, budget = _plain(name)
        whole = self._compiling(1.0) if suffix else contextlib.nullcontext

        def profile() -> hf.Profile:
            key = (suffix, budget)
            if key not in self._profiles:
                self._profiles[key] = self._workload.profile()
            return self._profiles[key]

        return HyperFramesMode(
            name, self._workload, profile, forbid.get(base, ()), self._factors[kind],
            functools.partial(self._checkpoint_peak, whole, suffix), references,
            tries=1 if self.is_host_heavy(name) else self._tries, enter=around,
            options=self._options, needs_peer=base.startswith("peer"),
        )  # fmt: skip

    def _checkpoint_peak(self, around: Enter, suffix: str, meter: Meter) -> int:
        """Measured in this call, once."""
        if suffix not in self._checkpoint_peaks:
            with meter.turn(), around(), self._workload.checkpointing():
                self._checkpoint_peaks[suffix] = meter.warm_peak()
        return self._checkpoint_peaks[suffix]

    def note_checkpoint_peaks(self, measured: list[Measured]) -> None:
        """What the checkpoint modes of an earlier call of measure() reached."""
        for one in measured:
            base = one.mode.name.removesuffix("_compiled")
            if base == "checkpoint" and one.peak:
                self._checkpoint_peaks[one.mode.name.removeprefix("checkpoint")] = one.peak

    def _compiling(self, budget: float) -> Enter:
        return functools.partial(self._compiled_blocks, budget)

    @contextlib.contextmanager
    def _compiled_blocks(self, budget: float) -> Iterator[None]:
        """Every block by torch.compile, under an activation memory budget; 1: all is saved."""
        blocks = self._workload.blocks()
        if budget not in self._compiled:
            backend = functools.partial(_compile, self._compile_backend, budget)
            calls = []
            for block in blocks:
                block.compile(backend=backend, dynamic=False)
                calls.append(block._compiled_call_impl)
            self._compiled[budget] = calls
        for block, call in zip(blocks, self._compiled[budget], strict=True):
            block._compiled_call_impl = call
        try:
            yield
        finally:
            for block in blocks:
                block._compiled_call_impl = None

    def _saved_bytes(self, *, parameters: bool) -> int:
        """Bytes that a step saves, tensor by tensor, as a pinning allocator rounds them."""
        total = 0
        owned = {p.untyped_storage().data_ptr() for p in self._workload.model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            if parameters or tensor.untyped_storage().data_ptr() not in owned:
                total += 1 << max(0, tensor.numel() * tensor.element_size() - 1).bit_length()
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            self._workload.loss()
        return total


def _plain(name: str) -> tuple[str, str, float]:
    """The name without its suffix and its budget, the suffix, and the share of what compiled code
    would save that it may save."""
    base = name.removesuffix("_compiled")
    suffix = name[len(base) :]
    base, found, percent = base.partition("_budget_")
    return base, suffix, int(percent) / 100 if found else 1.0


def _both(first: Enter, second: Enter) -> Enter:
    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with first(), second():
            yield

    return entered


def _compile(name: str, budget: float, graph: Any, inputs: Any) -> Any:
    # One function object per budget: Dynamo takes another one for another backend, and does not
    # hand a budget's blocks to the next.
    from torch._dynamo.backends.registry import lookup_backend

    with torch._functorch.config.patch(activation_memory_budget=budget):
        return lookup_backend(name)(graph, inputs)


def available_host_bytes() -> int:
    """What this process may still take: of the machine, and of its control group."""
    free = 1 << 62
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        most = int((group / "memory.max").read_text())
        free = min(free, most - int((group / "memory.current").read_text()))
    return free
