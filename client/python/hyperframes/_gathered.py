"""Weights that FSDP2 gathers inside a step are weights, not activations.

Their storages come and go with each block's forward and backward; a layer saves views of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from .errors import FailedPrecondition


def gathers_weights(module: nn.Module) -> bool:
    """fully_shard() was called on this very module."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def gathers_inside(module: nn.Module) -> bool:
    """Calls of it from outside include calls of FSDP's hooks."""
    from ._compiled import call_attribute

    return any(
        gathers_weights(part) and (part is not module or call_attribute(module) != "forward")
        for part in module.modules()
    )


def watch_gathered(model: nn.Module, add: Callable[[nn.Module], Any]) -> Callable[[], None]:
    """Calls ``add(part)`` whenever FSDP2 has gathered the weights of a part of the model.

    Not of compiled parts: a hook on these would be traced. Returns what undoes it.
    """

    def gathered(part: nn.Module, args: Any) -> None:
        add(part)

    # Not prepended, as FSDP's own hook is: it runs behind that one.
    handles = [part.register_forward_pre_hook(gathered) for part in _sharded_parts(model)]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def refuse_late_sharding(parts: Iterable[nn.Module], gathers: bool) -> None:
    """FailedPrecondition: fully_shard() was called after the context was opened.

    Args:
        gathers: some part of the model was sharded then.
    """
    if not gathers and any(gathers_weights(part) for part in parts):
        raise FailedPrecondition(
            "fully_shard() was called on the model inside hf.hyperframes, which would take "
            "gathered weights for activations: shard the model first, then open the context around "
            "it."
        )


@contextlib.contextmanager
def sharded_as_before(model: nn.Module) -> Iterator[None]:
    """What was sharded is sharded again afterwards.

    The root stays gathered after a forward that no backward follows, and an optimizer made then
    would hold parameters that FSDP is about to throw away.
    """
    parts = [part for part in model.modules() if gathers_weights(part)]
    sharded = [part for part in parts if all(map(_is_sharded, part.parameters()))]
    try:
        yield
    finally:
        for part in sharded:
            part.reshard()  # type: ignore[operator]


def _is_sharded(parameter: nn.Parameter) -> bool:
    return any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__)


def _sharded_parts(module: nn.Module) -> list[nn.Module]:
    from ._compiled import is_compiled

    if is_compiled(module):
        return []
    found = [module] if gathers_weights(module) else []
    for child in module.children():
        found += _sharded_parts(child)
    return found
