"""Sees every pair of saved-tensor hooks that Python code installs.

Only the topmost pair runs. A checkpoint or an offloader inside a block would silently take the
block's tensors out of the plan, so the session must know; and the meter must see what a checkpoint
recomputes. Both listen here. Installed only while somebody listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint
from torch.autograd.graph import saved_tensors_hooks

Listener = Callable[[Any], None]

_listeners: list[Listener] = []
_original_enter: Any = None
_original_function: Any = None


def _enter(self: Any) -> Any:
    for listener in list(_listeners):
        listener(self)
    return _original_enter(self)


class _ReentrantShim:
    """Stands in for CheckpointFunction, which installs no hooks that could be seen."""

    @staticmethod
    def apply(*args: Any) -> Any:
        for listener in list(_listeners):
            listener(_ReentrantShim)
        return _original_function.apply(*args)


def listen(listener: Listener) -> None:
    """Calls ``listener`` with every hooks object before it is installed."""
    global _original_enter, _original_function
    if not _listeners:
        _original_enter = saved_tensors_hooks.__enter__
        saved_tensors_hooks.__enter__ = _enter  # type: ignore[method-assign]
        _original_function = torch.utils.checkpoint.CheckpointFunction
        torch.utils.checkpoint.CheckpointFunction = _ReentrantShim  # type: ignore[misc,assignment]
    _listeners.append(listener)


def unlisten(listener: Listener) -> None:
    """Undoes listen()."""
    _listeners.remove(listener)
    if not _listeners:
        saved_tensors_hooks.__enter__ = _original_enter  # type: ignore[method-assign]
        torch.utils.checkpoint.CheckpointFunction = _original_function  # type: ignore[misc]


def is_checkpoint(hooks: Any) -> bool:
    """A checkpoint's forward starts, reentrant or not."""
    return hooks is _ReentrantShim or type(hooks).__name__ == "_checkpoint_hook"


def is_checkpoint_recomputation(hooks: Any) -> bool:
    """A non-reentrant checkpoint runs its function again."""
    return type(hooks).__name__ == "_recomputation_hook"
