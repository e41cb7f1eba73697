"""Counts optimizer steps and micro-batches, and knows whether gradients wait to be applied.

By torch's public hooks only; the user's loop says nothing but that an iteration has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ._checkpoint_state import ORDER_LIMIT, Counters
from ._checkpoint_tensors import Optimizers, local
from ._profiler import is_profiling
from ._refusals import unwrap_data_parallel
from .errors import InvalidArgument


class StepWatch:
    """The counters of one model and its optimizers. The first optimizer's steps are counted."""

    def __init__(self, model: nn.Module, optimizers: Optimizers) -> None:
        self.counters = Counters()
        self._root = unwrap_data_parallel(model)
        self._optimizers = optimizers
        # Micro-batches since the last superframe end; a program that never steps has no end.
        self._open: deque[int] = deque(maxlen=ORDER_LIMIT)
        self._pending = [False] * len(optimizers)
        self._muted = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """InvalidArgument: an optimizer without torch's hooks."""
        for index, optimizer in enumerate(self._optimizers):
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise InvalidArgument(
                    f"optimizer is a {type(optimizer).__name__}: give the torch.optim.Optimizer "
                    "that it steps, so that its steps can be counted."
                )
            hook = optimizer.register_step_post_hook(self._after_step(index))
            self._undo.append(hook.remove)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._watch(parameter, index)
        self._undo.append(self._root.register_forward_pre_hook(self._before_forward).remove)

    def remove(self) -> None:
        """Idempotent."""
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Steps that torch makes to initialise an optimizer's state are not the training's."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def why_not_now(self) -> str:
        """Why this is no superframe end; empty: it is one."""
        if torch._C._current_graph_task_id() != -1:
            return "a backward is under way"
        for index, optimizer in enumerate(self._optimizers):
            if self._pending[index]:
                if _has_gradients(optimizer):
                    which = f" of optimizer {index}" if len(self._optimizers) > 1 else ""
                    ids = ", ".join(str(each) for each in list(self._open)[-4:])
                    return f"gradients{which} wait to be applied (micro-batch {ids or 'unknown'})"
                self._pending[index] = False
        return ""

    def _watch(self, parameter: torch.Tensor, index: int) -> None:
        def after_accumulation(_: torch.Tensor) -> None:
            self._pending[index] = True

        if parameter.requires_grad:
            hook = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                after_accumulation
            )
            self._undo.append(hook.remove)

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        # Evaluation, recomputation inside a backward and profiling train nothing.
        if (
            not torch.is_grad_enabled()
            or not module.training
            or torch._C._current_graph_task_id() != -1
            or is_profiling()
        ):
            return
        self._open.append(self.counters.micro_batches)
        self.counters.micro_batches += 1
        # Sharded parameters may take gradients without their hooks.
        self._pending = [True] * len(self._pending)

    def _after_step(self, index: int) -> Callable[..., None]:
        def after(*_: Any) -> None:
            if self._muted:
                return
            self._pending[index] = False
            if index == 0:
                self.counters.step += 1
                self.counters.order_table = list(self._open)
                self._open.clear()

        return after


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    gradients = [
        local(parameter.grad)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    # zero_grad(set_to_none=False) leaves zeros: as good as none.
    return any(bool(torch.count_nonzero(gradient)) for gradient in gradients)
