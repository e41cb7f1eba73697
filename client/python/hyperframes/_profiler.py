"""Measures a model block by block, so that it works where the whole step would not fit."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from . import _guard
from ._arguments import refuse_written_sample, warn_written, written_argument
from ._block_runs import (
    fresh,
    fresh_arguments,
    no_leaf,
    restore_buffers,
    same_bits,
    set_random_state,
    synchronize,
    time_backward,
)
from ._blocks import LOSS, REST, Ledger, Record, discover_blocks, stays_reason
from ._compiled import replaced_call
from ._copy_costs import CopyCosts
from ._frames import describe_tensor
from ._gathered import gathers_inside, gathers_weights, sharded_as_before, watch_gathered
from ._gradients import bytes_by_block
from ._group import CollectiveWatch, world_size
from ._measure_compiled import measure_compiled
from ._measure_operators import CompiledWatch, measure_operators
from ._measure_rerun import measure_rerun
from ._meter import ParameterStorages, passing_hooks
from ._phases import Key, PhaseRecorder, SharedUse, bytes_beyond
from ._progress import progress
from ._refusals import is_compiled, refuse_checkpointing, refuse_own_graphs, unwrap
from ._shared import held_by_model, note_held, note_shared
from .errors import FailedPrecondition, ResourceExhausted
from .profile import BlockInfo, Profile, StorageInfo, resident_bill, signature_of

_BACKWARD_PER_FORWARD = 2.0  # Where it cannot be measured.
_RUNS = 2  # Two, so that what differs between them is never placed by guess.


def as_arguments(sample_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor, a tuple of positional arguments, or a mapping of keyword arguments."""
    if isinstance(sample_input, Mapping):
        return (), dict(sample_input)
    if isinstance(sample_input, (tuple, list)):
        return tuple(sample_input), {}
    return (sample_input,), {}


def profile(
    model: nn.Module,
    sample_input: Any,
    *,
    dtype: torch.dtype | None = None,
    loss_fn: Callable[[Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    blocks: Iterable[str] | None = None,
    allow_checkpointing: bool = False,
) -> Profile:
    """Measures what each block leaves for backward. Gradients, buffers and random state are as
    before.

    Args:
        model: in the mode (train or eval) in which it will run.
        sample_input: the forward's input: a tensor, a tuple of arguments, or a dict of keywords.
        dtype: runs under autocast to it, when given.
        loss_fn: from the model's output to the loss; what it saves is the block "loss".
        optimizer: for the bill of memory.
        blocks: dotted names of blocks, where the default (layers of a ModuleList) is not meant.
        allow_checkpointing: measure a model whose own checkpointing is on.

    Raises:
        FailedPrecondition: gradient checkpointing is on, or an offloader is at work.
        InvalidArgument: an unknown block.
        ResourceExhausted: one block alone needs more memory than there is.
    """
    root = unwrap(model)
    refuse_checkpointing(root, allow_checkpointing)
    args, kwargs = as_arguments(sample_input)
    refuse_written_sample(args, kwargs)
    run = _Run(root, discover_blocks(root, blocks), allow_checkpointing)
    cpu_rng = torch.get_rng_state()
    gpu_rng = torch.cuda.get_rng_state(run.device) if run.device.type == "cuda" else None
    try:
        with (
            torch.enable_grad(),
            _autocast(run.device, dtype),
            sharded_as_before(root),
            _announced(),
            progress("profiling", total=run.parts + (loss_fn is not None), unit="blocks") as tick,
        ):
            run.forward(args, kwargs, loss_fn, tick)
    except torch.OutOfMemoryError as error:
        raise ResourceExhausted(
            "The profile ran out of the GPU's memory: it holds all that one block leaves, which "
            "training may not need to. Profile a shorter input, profile=hf.profile(model, shorter "
            f"sample, ...): plans for longer ones are scaled from it. ({str(error)[:200]})"
        ) from error
    except RuntimeError as error:
        if "output of CUDAGraphs" in str(error):  # By a backend that says nothing of them.
            refuse_own_graphs("A block of the model")
        raise
    finally:
        set_random_state(cpu_rng, gpu_rng, run.device)
    costs = run.costs
    costs.finish(dtype or next(root.parameters()).dtype)
    weights, gradients, states, buffers = resident_bill(root, optimizer)
    blocks_run = run.in_order()
    made = bytes_by_block([run.module_of(block) for block in blocks_run])
    for block, count in zip(blocks_run, made, strict=True):
        block.gradient_bytes = count
    return Profile(
        blocks=blocks_run,
        signature=signature_of(args, kwargs),
        dtype=str(dtype or next(root.parameters()).dtype).removeprefix("torch."),
        parameter_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=states,
        buffer_bytes=buffers,
        parameters=sum(p.numel() for p in root.parameters()),
        copy_slowdowns=costs.found,
        copy_slowdown_note=costs.note,
    )


_under_way: list[None] = []


@contextlib.contextmanager
def _announced() -> Iterator[None]:
    _under_way.append(None)
    try:
        yield
    finally:
        _under_way.pop()


def is_profiling() -> bool:
    """The forward that runs now is a profile's, not the training's."""
    return bool(_under_way)


def model_device(model: nn.Module) -> torch.device:
    """The device of the first parameter. FailedPrecondition: a model without parameters."""
    for parameter in model.parameters():
        return parameter.device
    raise FailedPrecondition("The model has no parameters: there is nothing to train.")


def _autocast(device: torch.device, dtype: torch.dtype | None) -> Any:
    if dtype is None or dtype is torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


class _Run:
    """One profiling forward."""

    def __init__(
        self, root: nn.Module, blocks: dict[str, nn.Module], allow_checkpointing: bool
    ) -> None:
        self._root = root
        self._blocks = blocks
        self._allow_checkpointing = allow_checkpointing
        self.device = model_device(root)
        self._parameters = ParameterStorages(root)
        self._gathers = any(gathers_weights(part) for part in root.modules())
        self._ledger = Ledger(self.device)
        self.costs = CopyCosts(self.device, () if self._gathers else blocks.values())
        self._found: dict[str, BlockInfo] = {}
        self._uses: dict[str, dict[Key, SharedUse]] = {}  # Of storages, by the block that reads.
        self._held: set[Key] = set()  # By the model's own code, as the last block so far ended.
        self._running = ""
        self._warned = False
        self._batch: list[torch.UntypedStorage] = []
        self._tick: Callable[[str], None] = lambda name: None

    @property
    def parts(self) -> int:
        """Blocks to be measured, when each is called once."""
        return len(self._blocks)

    def module_of(self, block: BlockInfo) -> nn.Module | None:
        """The block's module; None for what is outside every block."""
        return self._blocks.get(block.name.partition("#")[0])

    def in_order(self) -> list[BlockInfo]:
        """REST first, for it may live all the step; LOSS last."""
        blocks = [block for name, block in self._found.items() if name not in (REST, LOSS)]
        rest, loss = self._found.get(REST), self._found.get(LOSS)
        if rest is not None and rest.storages:
            blocks.insert(0, rest)
        if loss is not None:
            blocks.append(loss)
        return blocks

    def forward(
        self,
        args: Any,
        kwargs: Any,
        loss_fn: Callable[[Any], torch.Tensor] | None,
        tick: Callable[[str], None],
    ) -> None:
        """The user's forward with every block measured, then the loss. ``tick`` after each."""
        self._tick = tick
        ledger = self._ledger
        self._batch = [
            leaf.untyped_storage()
            for leaf in _pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        ]
        ledger.begin_forward()
        ledger.in_root = True
        rest = self._found[REST] = BlockInfo(REST, keep_reason="outside every block")
        seen: dict[int, StorageInfo] = {}
        with contextlib.ExitStack() as stack:
            _guard.listen(self._see_hooks)
            stack.callback(_guard.unlisten, self._see_hooks)
            stack.callback(watch_gathered(self._root, self._parameters.add))
            for name, module in self._blocks.items():
                stack.enter_context(replaced_call(module, self._measured(name, module)))
            outside = PhaseRecorder(ledger, REST, self.device, 0)
            with passing_hooks(lambda t: self._saved(t, REST, seen, outside), lambda t: t):
                output = self._root(*args, **kwargs)
            ledger.in_root = False
            rest.storages = list(seen.values())
            self._uses[REST] = outside.uses
            if loss_fn is not None:
                self._measure(LOSS, None, loss_fn, (output,), {}, "the loss is outside the model")
        note_held(self._found, self._held)
        note_shared(self.in_order(), self._uses)

    def _see_hooks(self, hooks: Any) -> None:
        if isinstance(hooks, passing_hooks) or self._allow_checkpointing:
            return
        if _guard.is_checkpoint(hooks):
            raise FailedPrecondition(
                f"{self._running or 'The model'} calls torch.utils.checkpoint: its activations "
                "would be recomputed twice. Call model.gradient_checkpointing_disable() or remove "
                "the checkpoint call, or pass allow_checkpointing=True."
            )

    def _measured(self, name: str, module: nn.Module) -> Callable[..., Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                if not torch.is_grad_enabled() or self._running:
                    return original(*args, **kwargs)
                return self._measure(name, module, original, args, kwargs, "")

            return forward

        return make

    def _stays(self, tensor: torch.Tensor) -> str:
        reason = stays_reason(tensor, self.device, self._parameters)
        if not reason and any(tensor.untyped_storage() is held for held in self._batch):
            return "the batch itself: the caller holds it"
        return reason

    def _saved(
        self,
        tensor: torch.Tensor,
        block: str,
        found: dict[int, StorageInfo],
        phases: PhaseRecorder,
    ) -> torch.Tensor:
        if block == REST and self._running:
            return tensor.detach()  # Of a block's trial: no step has it, and nobody reads it there.
        if self._gathers and block in self._blocks and is_compiled(self._blocks[block]):
            self._parameters.add(self._blocks[block])
        reason = self._stays(tensor)
        handle = tensor.detach()
        if tensor.layout is torch.strided and tensor.device == self.device:
            storage = tensor.untyped_storage()
            if storage not in self._parameters and storage.nbytes():
                record, _ = self._ledger.classify(storage)
                if record.block == block:
                    info = found.get(record.ordinal)
                    if info is None:
                        info = found[record.ordinal] = StorageInfo(
                            record.ordinal,
                            storage.nbytes(),
                            is_input=record.is_input,
                            unmovable_reason=reason,
                            **describe_tensor(tensor),
                        )
                    info.consumers += 1
                phases.saved(record, handle)
        return handle

    def _measure(
        self,
        name: str,
        module: nn.Module | None,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Any,
        keep_reason: str,
    ) -> Any:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        snapshot = self._ledger.snapshot()
        rng = torch.get_rng_state()
        gpu_rng = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        buffers = [] if module is None else [(b, b.detach().clone()) for b in module.buffers()]
        runs: list[BlockInfo] = []
        eager = module is not None and not is_compiled(module)
        compiled = CompiledWatch() if eager else None
        outputs: list[Any] = []
        self._running = name
        try:
            written = written_argument(args, kwargs)
            if written:
                keep_reason = f"writes to its {written}"
                if not self._warned:
                    self._warned = warn_written(name, written)
            for index in range(1 if written else _RUNS):
                watch = CollectiveWatch() if not index and self._may_communicate(module) else None
                if index:
                    self._ledger.restore(snapshot)
                    set_random_state(rng, gpu_rng, self.device)
                given = fresh(leaves)
                versions = [tensor._version for tensor in tensors]
                nothing = contextlib.nullcontext()
                with watch or nothing, compiled or nothing:
                    info, output = self._once(name, module, forward, given, spec)
                info.collectives = watch is not None and watch.seen
                if [tensor._version for tensor in tensors] != versions:
                    info.keep_reason = "changes its input in place"
                if restore_buffers(buffers) and index + 1 < _RUNS:
                    info.keep_reason = "updates a buffer"
                runs.append(info)
                outputs.append(output)
            result = _merged(runs)
            result.keep_reason = keep_reason or result.keep_reason or _why_kept(outputs)
            again = functools.partial(fresh_arguments, leaves, spec)
            if module is not None and is_compiled(module):
                measure_compiled(result, module, forward, again, self.device)
            elif compiled is not None and compiled.seen:
                result.selective_reason = "it runs compiled code"
            elif module is not None and not result.keep_reason:
                measure_operators(result, module, forward, again, self.device)
                measure_rerun(result, module, forward, again, self._ledger, self._parameters)
            self.costs.look(result, module, forward, leaves, spec, outputs)
            restore_buffers(buffers)
        finally:
            self._running = ""
        if module is not None:
            own = {id(record) for leaf in leaves if (record := self._record_of(leaf)) is not None}
            self._held = held_by_model(self._ledger.living(), result.name, own)
            if self._held and len(self._found) >= self.parts:
                gc.collect()  # What only a cycle of dead objects holds is nobody's.
                self._held = held_by_model(self._ledger.living(), result.name, own)
        self._found[result.name] = result
        self._tick(name)
        return outputs[-1]

    @staticmethod
    def _may_communicate(module: nn.Module | None) -> bool:
        # A dispatch mode would make Dynamo give up on a compiled block for good.
        return module is not None and world_size() > 1 and not is_compiled(module)

    def _once(
        self,
        name: str,
        module: nn.Module | None,
        forward: Callable[..., Any],
        leaves: Any,
        spec: Any,
    ) -> tuple[BlockInfo, Any]:
        given = [no_leaf(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        versions = [x._version for x in given if isinstance(x, torch.Tensor)]
        args, kwargs = _pytree.tree_unflatten(given, spec)
        found: dict[int, StorageInfo] = {}
        if module is None:
            key = name
        else:
            key = self._ledger.enter(name, module, args, kwargs).key
            self._list_inputs(key, leaves, found)
        info = BlockInfo(key)
        base = self._start_peak()
        phases = PhaseRecorder(self._ledger, key, self.device, max(base, 0))
        self._uses[key] = phases.uses
        for leaf in leaves:
            given_record = self._record_of(leaf)
            if given_record is not None and given_record.block != key:
                phases.given(given_record)
        synchronize(self.device)
        start = time.perf_counter()
        try:
            with passing_hooks(lambda t: self._saved(t, key, found, phases), phases.read):
                output = forward(*args, **kwargs)
        finally:
            if module is not None:
                self._ledger.leave(module)
        synchronize(self.device)
        info.forward_s = time.perf_counter() - start
        if [x._version for x in given if isinstance(x, torch.Tensor)] != versions:
            info.keep_reason = "changes its input in place"
        info.storages = sorted(found.values(), key=lambda storage: storage.ordinal)
        own = [(s.ordinal, s.nbytes) for s in info.storages if not s.is_input]
        if base >= 0:
            peak = torch.cuda.max_memory_allocated(self.device) - base
            info.transient_bytes = max(0, peak - sum(nbytes for _, nbytes in own))
        if module is not None and gathers_inside(module):
            # A backward of this block alone would tell FSDP that the whole model's has ended.
            info.backward_s = _BACKWARD_PER_FORWARD * info.forward_s
        else:
            phases.begin(own, bytes_beyond(output, leaves, self._ledger))
            info.backward_s = time_backward(output, leaves, module, self.device)
            info.phases = phases.finish()
        info.outputs = [
            [index, record.ordinal]
            for index, leaf in enumerate(_pytree.tree_leaves(output))
            if (record := self._record_of(leaf)) is not None and record.block == key
        ]
        info.input_shapes = [list(x.shape) for x in leaves if isinstance(x, torch.Tensor)]
        flat = _pytree.tree_leaves(output)
        info.output_shapes = [list(x.shape) for x in flat if isinstance(x, torch.Tensor)]
        detached = _pytree.tree_map(
            lambda x: (
                no_leaf(x.detach().requires_grad_(x.requires_grad))
                if isinstance(x, torch.Tensor)
                else x
            ),
            output,
        )
        return info, detached

    def _record_of(self, leaf: Any) -> Record | None:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return None
        return self._ledger.find(leaf.untyped_storage()) if leaf.device == self.device else None

    def _start_peak(self) -> int:
        if self.device.type != "cuda":
            return -1
        torch.cuda.reset_peak_memory_stats(self.device)
        return int(torch.cuda.memory_allocated(self.device))

    def _list_inputs(self, key: str, leaves: list[Any], found: dict[int, StorageInfo]) -> None:
        """Inputs wait under RECOMPUTE even where the block itself does not save them."""
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
                continue
            storage = leaf.untyped_storage()
            record = self._ledger.find(storage)
            if (
                record is not None
                and record.block == key
                and record.ordinal not in found
                and storage.nbytes()
                and storage not in self._parameters
            ):
                found[record.ordinal] = StorageInfo(
                    record.ordinal,
                    storage.nbytes(),
                    is_input=True,
                    unmovable_reason=self._stays(leaf),
                    **describe_tensor(leaf),
                )


def _why_kept(outputs: list[Any]) -> str:
    return "" if same_bits(outputs[0], outputs[1]) else "two runs from one random state differ"


def _merged(runs: list[BlockInfo]) -> BlockInfo:
    """The last run with the least times; a storage that differed between runs is unstable."""
    first, last = runs[0], runs[-1]
    before = {storage.ordinal: storage for storage in first.storages}
    for storage in last.storages:
        other = before.get(storage.ordinal)
        storage.unstable = other is None or other.nbytes != storage.nbytes
    last.forward_s = min(run.forward_s for run in runs)
    last.backward_s = min(run.backward_s for run in runs)
    last.collectives = any(run.collectives for run in runs)
    last.keep_reason = next((run.keep_reason for run in runs if run.keep_reason), "")
    if not last.keep_reason and len(first.storages) != len(last.storages):
        last.keep_reason = "two runs saved a different number of tensors"
    return last
