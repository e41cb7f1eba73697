"""RECOMPUTE of a block under torch.compile: the compiled call itself runs again, in backward.

Four things differ from an eager block:
 * Which code runs is Dynamo's choice, made anew at each call among all that it compiled for the
   block. Another choice may round otherwise, so the second run must be of the same code.
 * A compiled backward writes to what only it was given (donated buffers). What is made again is
   handed out once; a second reader makes the block run once more.
 * Compiled code is called as a whole and saves everything at its end, so there is nothing to be won
   by stopping it early, by an exception from inside of it.
 * Arguments are guarded: one tensor that is given twice, or a Parameter, must be so again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._compiled import runs_hooks
from ._meter import passing_hooks
from ._recompute import BlockRun, EnoughError, RecomputeFrame, unpack_holder
from .errors import RecomputeMismatch

_MOST_NODES = 10_000  # Of a block's graph that are looked at.

Codes = tuple[type, ...]


def codes_of(output: Any, given: Any) -> Codes:
    """The compiled functions in the graph between a block's arguments and its output: the code
    that ran. AOT autograd makes a class for each version that it compiles."""
    # Python has one object for a node only as long as somebody holds it: these sets do.
    seen = {leaf.grad_fn for leaf in _tensors(given)}
    waiting = deque(leaf.grad_fn for leaf in _tensors(output))
    found: list[type] = []
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if hasattr(function, "compiled_fw"):
            assert isinstance(function, type)
            found.append(function)
        waiting.extend(following for following, _ in node.next_functions)
    return tuple(found)


def keep_random_states(codes: Codes) -> bool:
    """What they draw comes from generators of their own, which nothing puts back for a second run.
    (Where a compiled backward draws again what its forward drew, on CUDA.)"""
    metadata = [getattr(code, "metadata", None) for code in codes]
    return any(getattr(one, "num_graphsafe_rng_states", 0) for one in metadata)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _untraced(hook: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """A block in several pieces is compiled with whatever runs between them, hooks too."""
    untraced: Callable[[torch.Tensor], Any] = torch._dynamo.disable(hook)  # type: ignore[no-untyped-call]
    return untraced


class CompiledFrame(RecomputeFrame):
    """One call of one recomputed block that is compiled."""

    def __init__(self, run: BlockRun) -> None:
        super().__init__(run)
        self.codes: Codes = ()
        self._threads = torch.get_num_threads()  # Dynamo guards it; backward has its own threads.
        leaves = _pytree.tree_leaves((run.args, run.kwargs))
        first = {id(leaf): index for index, leaf in reversed(list(enumerate(leaves)))}
        self._same = [first[id(leaf)] for leaf in leaves]
        self._weights = {
            index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, nn.Parameter)
        }

    def run(self, args: Any, kwargs: Any) -> Any:
        with passing_hooks(_untraced(self._pack), unpack_holder):
            output = self._forward(*args, **kwargs)
        self.codes = codes_of(output, (args, kwargs))
        return output

    def _inputs(self) -> tuple[Any, Any]:
        leaves, spec = _pytree.tree_flatten(super()._inputs())
        leaves = [self._weights.get(i, leaves[i]) for i in self._same]
        args, kwargs = _pytree.tree_unflatten(leaves, spec)
        return args, kwargs

    def _recompute(self) -> Any:
        collected = super()._recompute()
        for one in collected.values():
            one.storage = None  # Whoever takes it may write to it: it is not to be found again.
        return collected

    def _again(self, collect: Callable[[torch.Tensor], Any], args: Any, kwargs: Any) -> None:
        expected, counter = len(self._holders), 0

        def collect_all(tensor: torch.Tensor) -> Any:
            nonlocal counter
            counter += 1
            if counter <= expected:
                try:
                    return collect(tensor)
                except EnoughError:
                    pass
            return tensor.detach()

        threads = torch.get_num_threads()
        try:
            if threads != self._threads:
                torch.set_num_threads(self._threads)
            with passing_hooks(_untraced(collect_all), lambda saved: saved):
                output = self._forward(*args, **kwargs)
        finally:
            if threads != self._threads:
                torch.set_num_threads(threads)
        same = codes_of(output, (args, kwargs)) == self.codes
        if not same or counter > expected or keep_random_states(self.codes):
            raise RecomputeMismatch(
                f"Block {self.name} ran other compiled code when it was recomputed than in "
                f"forward ({counter} saved tensors, {expected} in forward): it was compiled again "
                "in between, for another shape for example, and the last version that fits is "
                "taken. Run the backward of one shape before the forward of the next, pad to one "
                "shape, or keep the block from being recomputed with forbid=['recompute']."
            )


def run_compiled(run: BlockRun) -> Any:
    """The compiled call under a frame of its own; as it is where hooks were registered on the block
    since it was planned."""
    if runs_hooks(run.module):
        return run.forward(*run.args, **run.kwargs)
    return CompiledFrame(run).run(run.args, run.kwargs)
