"""One block run by itself: arguments as leaves of a graph of its own, and its backward timed."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._frames import View


def fresh(leaves: list[Any]) -> list[Any]:
    """The arguments again, as leaves of a graph of their own."""
    return [
        leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
    ]


def fresh_arguments(leaves: list[Any], spec: Any) -> tuple[Any, Any]:
    given = [no_leaf(x) if isinstance(x, torch.Tensor) else x for x in fresh(leaves)]
    args, kwargs = _pytree.tree_unflatten(given, spec)
    return args, kwargs


class _Passed(torch.autograd.Function):
    """The same memory as a tensor of its own: neither a leaf nor a view of one."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return View(leaf).over(leaf.untyped_storage())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0]


def no_leaf(leaf: torch.Tensor) -> torch.Tensor:
    """As blocks get tensors from each other in a step, where they may write to them in place."""
    if not leaf.requires_grad or leaf.layout is not torch.strided or type(leaf) is not torch.Tensor:
        return leaf
    passed: torch.Tensor = _Passed.apply(leaf)  # type: ignore[no-untyped-call]
    return passed


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_backward(
    output: Any, leaves: list[Any], module: nn.Module | None, device: torch.device
) -> float:
    """Seconds of the block's own backward. Gradients go nowhere: hooks of DDP must not see them."""
    outs = [
        x for x in _pytree.tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    if module is not None:
        wanted += [p for p in module.parameters() if p.requires_grad]
    outs = [x for x in outs if x.grad_fn is not None]
    if not outs or not wanted:
        return 0.0
    start = time.perf_counter()
    torch.autograd.grad(outs, wanted, [torch.ones_like(x) for x in outs], allow_unused=True)
    synchronize(device)
    return time.perf_counter() - start
