"""Whether a compiled block may run again in backward: found out by trial, as it would be done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._block_runs import time_backward
from ._compiled_replay import CompiledFrame
from ._gathered import gathers_weights
from ._measure_operators import fingerprint
from ._preserve import RandomStates

_LONGEST_REASON = 200


def why_compiled_kept(
    name: str,
    module: nn.Module,
    forward: Callable[..., Any],
    arguments: Callable[[], tuple[Any, Any]],
    device: torch.device,
) -> str:
    """Why a compiled block is not to be run again; empty: it may be.

    Takes two forwards and a backward of the block, whose gradients go nowhere. Random states are as
    before; buffers are the caller's to put back.

    Args:
        forward: the compiled call.
        arguments: makes fresh positional and keyword arguments for one call.
    """
    if any(gathers_weights(part) for part in module.modules()):
        # FSDP's hooks are part of what is compiled: they would gather and free weights inside of a
        # backward that does so itself.
        return "compiled, with weights that FSDP gathers"
    if _uses_cuda_graphs(forward):
        return "compiled with CUDA graphs, whose runs overwrite what the last one left"
    states = RandomStates(device)
    try:
        return _tried(name, module, forward, arguments(), device)
    except Exception as error:  # Whatever it is, training had better not meet it.
        text = f"compiled, and it cannot run again: {type(error).__name__}: {error}"
        return " ".join(text.split())[:_LONGEST_REASON]
    finally:
        states.put_back()


def _uses_cuda_graphs(forward: Callable[..., Any]) -> bool:
    """As mode="reduce-overhead" does it."""
    config = sys.modules.get("torch._inductor.config")
    if config is not None and config.triton.cudagraphs:
        return True
    read = getattr(forward, "get_compiler_config", None)
    settings = read() if read is not None else None
    return bool(settings and settings.get("triton.cudagraphs"))


def _tried(
    name: str, module: nn.Module, forward: Callable[..., Any], given: tuple[Any, Any],
    device: torch.device,
) -> str:  # fmt: skip
    args, kwargs = given
    frame = _Trial(name, module, forward, args, kwargs, device, lambda name, nanoseconds: None)
    output = frame.run(args, kwargs)
    if not frame.codes:
        return "compiled, by a backend whose code cannot be told from another version of it"
    if any(getattr(code.metadata, "num_graphsafe_rng_states", 0) for code in frame.codes):  # type: ignore[attr-defined]
        return "compiled, with random states of its own"
    before = _fingerprints(output)
    time_backward(output, _pytree.tree_leaves(given), module, device)
    if frame.differs or not _equal(before, _fingerprints(output)):
        return "compiled, and two runs from one random state differ"
    return ""


def _fingerprints(output: Any) -> list[torch.Tensor]:
    leaves = _pytree.tree_leaves(output)
    return [fingerprint(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class _Trial(CompiledFrame):
    """Notes whether its second run saved other bits than the first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._first: list[torch.Tensor] = []
        self.differs = False

    def _pack(self, tensor: torch.Tensor) -> Any:
        self._first.append(fingerprint(tensor))
        return super()._pack(tensor)

    def _compare(self, holder: Any, tensor: torch.Tensor) -> None:
        super()._compare(holder, tensor)
        self.differs |= not torch.equal(fingerprint(tensor), self._first[holder.index])
