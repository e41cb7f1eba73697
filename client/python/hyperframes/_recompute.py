"""Non-reentrant recomputation of one block, whose inputs are storages like any other.

In forward the block's tensors leave only their geometry; its inputs are saved through the hooks
below, so that they get a tier. The first tensor that backward asks for runs the block again, once
per graph task, with random state, autocast and training flags as they were.

What an operator saves of its random state is kept instead: a few numbers. An operator that drew
nothing may have left them as its memory was, and one that draws by itself would draw others.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree

from ._frames import View, modified_error, version_probe
from ._meter import observe_everywhere, passing_hooks
from .errors import FailedPrecondition, HyperFramesError, RecomputeMismatch

_MOST_STATE = 16  # Numbers in what an operator saves of its random state.
_OWN_STORAGE = 512  # Bytes: a small tensor in a larger one would keep that.
_KEPT_TASKS = 2  # Graph tasks whose recomputed tensors are held at once (nested backwards).


class EnoughError(BaseException):
    """Every tensor that backward may ask for is there: stop the recomputation early.

    A BaseException, so that no ``except Exception`` in a model swallows it.
    """


class _SaveInputs(torch.autograd.Function):
    """Puts the inputs under the hooks of the session without being part of the graph."""

    @staticmethod
    def forward(ctx: Any, dummy: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise AssertionError("the input saver is never part of a backward")


class Surroundings:
    """Random, autocast and training state at the start of a block's forward."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._device = device
        self._cpu_rng = torch.get_rng_state()
        self._gpu_rng = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._python_rng = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy_rng = numpy.random.get_state() if numpy is not None else None
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in dict.fromkeys((device.type, "cpu"))
        ]
        self.caches_casts = torch.is_autocast_cache_enabled()
        self._training = [(part, part.training) for part in module.modules()]

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Everything as it was; afterwards everything as it is."""
        now = random.getstate(), torch.get_rng_state()
        numpy = sys.modules.get("numpy")
        numpy_now = numpy.random.get_state() if numpy is not None else None
        gpu_now = torch.cuda.get_rng_state(self._device) if self._gpu_rng is not None else None
        changed = [(part, flag) for part, flag in self._training if part.training != flag]
        with contextlib.ExitStack() as stack:
            try:
                random.setstate(self._python_rng)
                torch.set_rng_state(self._cpu_rng)
                if numpy is not None and self._numpy_rng is not None:
                    numpy.random.set_state(self._numpy_rng)
                if self._gpu_rng is not None:
                    torch.cuda.set_rng_state(self._gpu_rng, self._device)
                for part, flag in changed:
                    part.training = flag
                for kind, enabled, dtype in self._autocast:
                    stack.enter_context(
                        torch.autocast(kind, dtype, enabled, cache_enabled=self.caches_casts)
                    )
                yield
            finally:
                for part, flag in changed:
                    part.training = not flag
                random.setstate(now[0])
                torch.set_rng_state(now[1])
                if numpy is not None and numpy_now is not None:
                    numpy.random.set_state(numpy_now)
                if gpu_now is not None:
                    torch.cuda.set_rng_state(gpu_now, self._device)


class _Holder:
    """What backward holds for one tensor of a recomputed block."""

    __slots__ = (
        "__weakref__", "device", "frame", "index", "probe", "type_name", "version", "view",
    )  # fmt: skip

    def __init__(self, frame: RecomputeFrame, index: int, tensor: torch.Tensor) -> None:
        self.frame = frame
        self.index = index
        self.view = View(tensor)
        self.device = tensor.device
        self.type_name = tensor.type()
        self.version = tensor._version
        self.probe = version_probe(tensor)

    def unpack(self) -> torch.Tensor:
        """The tensor as the forward had it."""
        if self.probe._version != self.version:
            raise modified_error(self.type_name, self.view.size, self.probe._version, self.version)
        return self.frame.tensor(self)


class Collected:
    """A recomputed tensor: held until backward takes it, known afterwards while it lives."""

    __slots__ = ("storage", "tensor", "version", "view")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor.detach()
        self.version = tensor._version
        self.view = View(tensor)
        self.storage: weakref.ref[torch.UntypedStorage] | None = None
        if tensor.layout is torch.strided:
            self.storage = weakref.ref(tensor.untyped_storage())

    def take(self) -> torch.Tensor | None:
        """None when it was consumed and its memory is gone."""
        tensor, self.tensor = self.tensor, None
        if tensor is None:
            storage = self.storage() if self.storage is not None else None
            return None if storage is None else self.view.over(storage)
        if tensor._version != self.version:
            raise modified_error(tensor.type(), tuple(tensor.size()), tensor._version, self.version)
        return tensor


# Keeps the tensor of this index where backward wants it (else only looks at it); returns what the
# second run's own graph holds for it.
Hold = Callable[[int, torch.Tensor, bool], Any]


class BlockRun(NamedTuple):
    """One call of a block, as it is about to run in forward."""

    name: str
    module: nn.Module
    forward: Callable[..., Any]
    args: Any
    kwargs: Any
    device: torch.device
    on_recompute: Callable[[str, int], None]  # Given the name, and nanoseconds that it took.


class RecomputeFrame:
    """One call of one recomputed block. Nothing of its arguments is held but what is saved."""

    def __init__(self, run: BlockRun) -> None:
        module, device, args, kwargs = run.module, run.device, run.args, run.kwargs
        self.name = run.name
        self._forward = run.forward
        self._device = device
        self._on_recompute = run.on_recompute
        self._surroundings = Surroundings(module, device)
        # The graph of the first forward holds holders, holders hold this; never the other way.
        self._holders: list[weakref.ref[_Holder]] = []
        self._states: dict[int, torch.Tensor] = {}  # Of the first run, by index.
        self._tasks: dict[int, dict[int, Collected]] = {}
        self._state = [
            (part, tensor, tensor._version)
            for part, tensor in (*module.named_parameters(), *module.named_buffers())
        ]
        leaves, self._spec = _pytree.tree_flatten((args, kwargs))
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._slots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._needs_grad = [bool(leaves[i].requires_grad) for i in self._slots]
        dummy = torch.empty(0, requires_grad=True)
        save: Callable[..., torch.Tensor] = _SaveInputs.apply
        # The output keeps the node alive, and the node what it saved.
        self._saver = save(dummy, *(leaves[i].detach() for i in self._slots))

    def run(self, args: Any, kwargs: Any) -> Any:
        """The block's forward; nothing but geometry is held for backward."""
        with passing_hooks(self._pack, unpack_holder):
            return self._forward(*args, **kwargs)

    def _pack(self, tensor: torch.Tensor) -> _Holder:
        holder = _Holder(self, len(self._holders), tensor)
        if _may_be_state(tensor):
            own = tensor.untyped_storage().nbytes() <= _OWN_STORAGE
            self._states[holder.index] = tensor.detach() if own else _copied(tensor.detach())
        self._holders.append(weakref.ref(holder))
        return holder

    def tensor(self, holder: _Holder) -> torch.Tensor:
        """The recomputed tensor for ``holder``; runs the block where this graph task has not."""
        if holder.index in self._states:
            return _copied(self._states[holder.index])  # Compiled code may write to what it gets.
        task = torch._C._current_graph_task_id()
        collected = self._tasks.get(task) if task != -1 else None
        found = collected[holder.index].take() if collected else None
        if found is None:
            # Also when it was consumed before and its memory is gone: saved_tensors read twice.
            if collected is not None:
                self._let_go(collected)
            collected = self._recompute()
            found = collected[holder.index].take()
            if task != -1:
                self._remember(task, collected)
            else:
                self._let_go(collected)
        assert found is not None
        return found

    def _remember(self, task: int, collected: dict[int, Collected]) -> None:
        known = task in self._tasks
        self._tasks[task] = collected
        while len(self._tasks) > _KEPT_TASKS:
            self._let_go(self._tasks.pop(next(iter(self._tasks))))
        if not known:
            # What this backward does not consume must not wait for the frame's death.
            torch.autograd.Variable._execution_engine.queue_callback(self._forgetting(task))

    def _forgetting(self, task: int) -> Callable[[], None]:
        """To be called when the graph task ends, whether the frame lives or not."""
        me = weakref.ref(self)

        def forget() -> None:
            frame = me()
            if frame is not None and task in frame._tasks:
                frame._let_go(frame._tasks.pop(task))

        return forget

    def _let_go(self, collected: dict[int, Collected]) -> None:
        """Backward will not ask for them."""
        collected.clear()

    def _inputs(self) -> tuple[Any, Any]:
        leaves = list(self._leaves)
        try:
            node: Any = self._saver.grad_fn
            saved = node.saved_tensors
        except HyperFramesError:
            raise
        except RuntimeError as error:
            raise FailedPrecondition(
                f"An input of block {self.name} was changed in place after the block ran, so the "
                "block cannot be recomputed: change a copy of it, or keep this plan from "
                f"recomputing with forbid=['recompute']. ({error})"
            ) from error
        for i, tensor, needs_grad in zip(self._slots, saved, self._needs_grad, strict=True):
            leaves[i] = tensor.detach().requires_grad_(needs_grad)
        args, kwargs = _pytree.tree_unflatten(leaves, self._spec)
        return args, kwargs

    def _check_state(self) -> None:
        for part, tensor, version in self._state:
            if tensor._version != version:
                raise FailedPrecondition(
                    f"{part} of block {self.name} changed between its forward and its "
                    "recomputation, so its activations cannot be made again: change it after "
                    "backward, or keep this plan from recomputing with forbid=['recompute']."
                )

    def _recompute(self) -> dict[int, Collected]:
        self._check_state()
        start = time.perf_counter_ns()
        collected: dict[int, Collected] = {}
        expected = len(self._holders)
        counter = 0

        def collect(tensor: torch.Tensor) -> Any:
            nonlocal counter
            index, counter = counter, counter + 1
            holder = self._holders[index]() if index < expected else None
            if holder is not None:
                self._compare(holder, tensor)
            held = hold(index, tensor, holder is not None and index not in self._states)
            if counter == expected:
                raise EnoughError
            return held

        try:
            with self._surroundings.replayed(), torch.enable_grad():
                args, kwargs = self._inputs()
                hold = self._holding(collected)
                self._again(collect, args, kwargs)
            if counter != expected:
                raise RecomputeMismatch(
                    f"Block {self.name} saved {expected} tensors in forward and {counter} when it "
                    "was recomputed: it depends on state that is not replayed. Keep it from being "
                    "recomputed with forbid=['recompute'], or make its forward repeatable."
                )
        except BaseException:
            self._let_go(collected)  # The traceback holds it.
            raise
        self._on_recompute(self.name, time.perf_counter_ns() - start)
        return collected

    def _holding(self, collected: dict[int, Collected]) -> Hold:
        """For one run again: what fills ``collected``."""

        def hold(index: int, tensor: torch.Tensor, wanted: bool) -> Any:
            if wanted:
                collected[index] = Collected(tensor)
                if tensor.layout is torch.strided and tensor.device == self._device:
                    observe_everywhere(tensor.untyped_storage())
            return tensor.detach()

        return hold

    def _again(self, collect: Callable[[torch.Tensor], Any], args: Any, kwargs: Any) -> None:
        """Runs the forward until ``collect`` has had enough."""
        with contextlib.suppress(EnoughError), passing_hooks(collect, self._held):
            self._forward(*args, **kwargs)

    @staticmethod
    def _held(held: Any) -> torch.Tensor:
        """For a backward inside the block's forward: the tensor of what ``hold`` returned."""
        return held  # type: ignore[no-any-return]

    def _compare(self, holder: _Holder, tensor: torch.Tensor) -> None:
        view = holder.view
        if (
            view.size == tuple(tensor.size())
            and view.dtype == tensor.dtype
            and holder.device == tensor.device
        ):
            return
        raise RecomputeMismatch(
            f"Block {self.name}: tensor {holder.index} was {view.dtype} {list(view.size)} on "
            f"{holder.device} in forward and {tensor.dtype} {list(tensor.size())} on "
            f"{tensor.device} when it was recomputed. Keep the block from being recomputed with "
            "forbid=['recompute'], or make its forward repeatable."
        )


def _may_be_state(tensor: torch.Tensor) -> bool:
    return (
        not (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and 0 < tensor.numel() <= _MOST_STATE
        and _span(tensor) * tensor.element_size() <= _OWN_STORAGE
    )


def _span(tensor: torch.Tensor) -> int:
    """Elements of memory from the first to the last of the tensor's own."""
    geometry = zip(tensor.size(), tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in geometry)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in memory of their own, by the same strides: compiled code asserts them."""
    memory = tensor.as_strided((_span(tensor),), (1,), tensor.storage_offset()).clone()
    return memory.as_strided(tensor.size(), tensor.stride(), 0)


def unpack_holder(holder: _Holder) -> torch.Tensor:
    """The hook that goes with RecomputeFrame's packing."""
    return holder.unpack()
