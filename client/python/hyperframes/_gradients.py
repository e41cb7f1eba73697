"""When gradients take memory: from the backward that makes them until they are set to None."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import nn

from ._refusals import unwrap_data_parallel


def watch_gradients(model: nn.Module) -> Callable[[], bool]:
    """Says, whenever it is called, whether no parameter of ``model`` has a gradient: then each
    comes into being in its block's backward. Does not keep the model alive.

    Never so for DDP, and for sharded parameters, whose gradients live in buffers of their own.
    """
    reference = weakref.ref(model)

    def absent() -> bool:
        model = reference()
        return (
            model is not None
            and unwrap_data_parallel(model) is model
            and all(
                parameter.grad is None and type(parameter.data) is torch.Tensor
                for parameter in model.parameters()
                if parameter.requires_grad
            )
        )

    return absent


def bytes_by_block(modules: Iterable[nn.Module | None]) -> list[int]:
    """Gradient bytes that each block's backward brings into being.

    Args:
        modules: the blocks in the order of their forwards; None for what is no module. A parameter
            that several of them use gets its gradient in the first backward, the last one's here.
    """
    seen: set[int] = set()
    found = []
    for module in reversed(list(modules)):
        count = 0
        for parameter in module.parameters() if module is not None else ():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                count += parameter.numel() * parameter.element_size()
        found.append(count)
    return found[::-1]
