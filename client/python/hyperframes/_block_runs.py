"""One block run by itself: arguments as leaves of a graph of its own, and its backward timed."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._frames import View

_LONGEST_WORDS = 160


def words_of(error: Exception) -> str:
    """Its kind and message as one bounded line, for a reason in a profile."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_WORDS]


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
    start = time.perf_counter()
    if not run_backward(output, leaves, module):
        return 0.0
    synchronize(device)
    return time.perf_counter() - start


def run_backward(output: Any, leaves: list[Any], module: nn.Module | None) -> bool:
    """The block's own backward, with ones for gradients; False where it has none."""
    return bool(gradients_of(output, leaves, module))


def gradients_of(
    output: Any, leaves: list[Any], module: nn.Module | None
) -> list[torch.Tensor | None]:
    """Of arguments and parameters that want one, by the block's own backward; none where it has
    none."""
    outs = [
        x for x in _pytree.tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    if module is not None:
        wanted += [p for p in module.parameters() if p.requires_grad]
    outs = [x for x in outs if x.grad_fn is not None]
    if not outs or not wanted:
        return []
    ones = [torch.ones_like(x) for x in outs]
    return list(torch.autograd.grad(outs, wanted, ones, allow_unused=True))


def set_random_state(cpu: torch.Tensor, gpu: torch.Tensor | None, device: torch.device) -> None:
    """Sets the random state of the processor, and of the GPU where there is one."""
    torch.set_rng_state(cpu)
    if gpu is not None:
        torch.cuda.set_rng_state(gpu, device)


def restore_buffers(saved: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Puts buffers back; True when one had been changed."""
    changed = False
    with torch.no_grad():
        for buffer, before in saved:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
                changed = True
    return changed


def same_bits(first: Any, second: Any) -> bool:
    """Two outputs are equal in every number; what is not one equals itself."""
    a, b = _pytree.tree_leaves(first), _pytree.tree_leaves(second)
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.equal(x.detach().nan_to_num(), y.detach().nan_to_num())
        for x, y in zip(a, b, strict=True)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    )
