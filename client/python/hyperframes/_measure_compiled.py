"""Whether a compiled block may run again in backward: found out by trial, as it would be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._block_runs import gradients_of, words_of
from ._compiled import runs_hooks
from ._compiled_replay import CompiledFrame, keep_random_states
from ._gathered import gathers_weights
from ._group import collectives_issued, world_size
from ._measure_operators import fingerprint
from ._preserve import RandomStates
from ._recompute import BlockRun
from .profile import BlockInfo

_DIFFER = "two runs from one random state differ"


def measure_compiled(
    info: BlockInfo,
    module: nn.Module,
    forward: Callable[..., Any],
    arguments: Callable[[], tuple[Any, Any]],
    device: torch.device,
) -> None:
    """Fills in ``keep_reason`` of ``info``; where it stays empty the block may run again.

    Takes two forwards and a backward of the block, whose gradients go nowhere. Random states are as
    before; buffers are the caller's to put back.

    Args:
        forward: the compiled call.
        arguments: makes fresh positional and keyword arguments for one call.
    """
    info.selective_reason = "it is compiled"
    # Nobody sees all that compiled code sends. Where ranks agree, they send it equally often.
    info.collectives = world_size() > 1
    if not info.keep_reason:
        info.keep_reason = _never(module)
    if info.keep_reason:
        return
    states = RandomStates(device)
    try:
        info.keep_reason = _tried(info.name, module, forward, arguments, device)
    except Exception as error:  # Whatever it is, training had better not meet it.
        info.keep_reason = f"it cannot run again: {words_of(error)}"
    finally:
        states.put_back()


def _never(module: nn.Module) -> str:
    if any(gathers_weights(part) for part in module.modules()):
        # FSDP's hooks are part of what is compiled: they would gather and free weights inside of a
        # backward that does so itself.
        return "compiled, with weights that FSDP gathers"
    if runs_hooks(module):
        return "compiled with hooks of its own, which would run twice"
    return ""


def _tried(
    name: str,
    module: nn.Module,
    forward: Callable[..., Any],
    arguments: Callable[[], tuple[Any, Any]],
    device: torch.device,
) -> str:
    args, kwargs = given = arguments()
    issued = collectives_issued()
    frame = _Trial(BlockRun(name, module, forward, args, kwargs, device, lambda *_: None))
    output = frame.run(args, kwargs)
    if world_size() > 1 and (issued is None or collectives_issued() != issued):
        return "compiled, and it communicates with other ranks"
    if not frame.saves:
        return ""  # There is nothing to make again.
    if not frame.codes:
        return "compiled, by a backend whose code cannot be told from another version of it"
    if keep_random_states(frame.codes):
        return "compiled, with random states of its own"
    before = _fingerprints(output)
    gradients_of(output, _pytree.tree_leaves(given), module)
    if not all(map(torch.equal, before, _fingerprints(output))):
        # As a backend does that gives every run the same memory.
        return f"{_DIFFER}: the second one writes to what the first one returned"
    return f"{_DIFFER}: {frame.differs} that it saves" if frame.differs else ""


def _fingerprints(output: Any) -> list[torch.Tensor]:
    leaves = _pytree.tree_leaves(output)
    return [fingerprint(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _words(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


class _Trial(CompiledFrame):
    """Notes whether its second run saved other bits than the first."""

    def __init__(self, run: BlockRun) -> None:
        super().__init__(run)
        self._first: list[torch.Tensor] = []
        self.differs = ""  # The first tensor that did, as words.

    @property
    def saves(self) -> bool:
        return bool(self._first)

    def _pack(self, tensor: torch.Tensor) -> Any:
        self._first.append(fingerprint(tensor))
        return super()._pack(tensor)

    def _compare(self, holder: Any, tensor: torch.Tensor) -> None:
        super()._compare(holder, tensor)
        kept = holder.index in self._states
        if not kept and not torch.equal(fingerprint(tensor), self._first[holder.index]):
            self.differs = self.differs or _words(tensor)
