"""Everything that training steps change, kept aside, so that steps can be tried and undone."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree


class RandomStates:
    """The random states of torch, of the device, of Python and of NumPy as they are now."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def put_back(self) -> None:
        """They are again as they were."""
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)
        random.setstate(self._python)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self._numpy is not None:
            numpy.random.set_state(self._numpy)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; any other tensor as it is."""
    part = getattr(tensor, "to_local", None)
    found: torch.Tensor = part() if part is not None else tensor
    return found.detach()


def _aside(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory: the GPU may have no room for a second model."""
    return _local(tensor).to("cpu", copy=True)


class Preserved:
    """A model, its optimizer, gradients and random states, as they were when this was made.

    What a module keeps beside parameters and buffers (a counter, a list) is its own affair.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        inputs: Any = None,
    ) -> None:
        self._random = RandomStates(device)
        self._parameters = [(p, _aside(p)) for p in model.parameters()]
        self._buffers = [
            (module, name, buffer, _aside(buffer))
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        leaves: list[torch.Tensor] = [p for p, _ in self._parameters]
        leaves += [x for x in _pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
        self._gradients = [(leaf, leaf.grad) for leaf in leaves if leaf.is_leaf]
        self._flags = [(module, module.training) for module in model.modules()]
        self._optimizer = optimizer
        self._states: list[tuple[Any, Any, dict[str, tuple[Any, Any]]]] = []
        self._groups: list[dict[str, Any]] = []
        if optimizer is not None:
            self._states = [
                (key, state, {name: (value, _copied(value)) for name, value in state.items()})
                for key, state in optimizer.state.items()
            ]
            self._groups = [
                {name: _copied(value) for name, value in group.items() if name != "params"}
                for group in optimizer.param_groups
            ]

    def clear_gradients(self) -> None:
        """As zero_grad(set_to_none=True), of the inputs too."""
        for leaf, _ in self._gradients:
            leaf.grad = None

    def rewind(self) -> None:
        """Parameters, buffers, optimizer and random states as they were; no gradients."""
        with torch.no_grad():
            for parameter, value in self._parameters:
                _local(parameter).copy_(value)
            for module, name, buffer, value in self._buffers:
                module._buffers[name] = buffer
                _local(buffer).copy_(value)
            self._rewind_optimizer()
        for module, training in self._flags:
            module.training = training
        self.clear_gradients()
        self._random.put_back()

    def _rewind_optimizer(self) -> None:
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        for key, state, values in self._states:
            state.clear()
            for name, (value, copied) in values.items():
                if isinstance(value, torch.Tensor):
                    _local(value).copy_(copied)
                    state[name] = value
                else:
                    state[name] = copy.deepcopy(copied)
            self._optimizer.state[key] = state
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=True):
            for name in [name for name in group if name != "params" and name not in before]:
                del group[name]
            for name, value in before.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                    group[name].copy_(value)
                else:
                    group[name] = copy.deepcopy(value)

    def restore(self) -> None:
        """Everything as it was, with the very gradients that were there."""
        self.rewind()
        for leaf, gradient in self._gradients:
            leaf.grad = gradient


def _copied(value: Any) -> Any:
    return _aside(value) if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def same_bits(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Equal to the last bit; NaNs of the same bits are equal, 0.0 and -0.0 are not."""
    if first is None or second is None:
        return first is second
    if first.shape != second.shape or first.dtype != second.dtype or first.layout != second.layout:
        return False
    if first.layout is not torch.strided:
        a, b = first.coalesce(), second.coalesce()
        return same_bits(a.indices(), b.indices()) and same_bits(a.values(), b.values())
    if not first.numel():
        return True
    a, b = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (first, second))
    return torch.equal(a, b)


Fingerprint = dict[str, torch.Tensor | None]


def gradients_of(model: nn.Module) -> Fingerprint:
    """Gradients by parameter name, copied to host memory."""
    return {
        f"gradient of {name}": None if p.grad is None else _aside(p.grad)
        for name, p in model.named_parameters()
    }


def first_difference(first: Fingerprint, second: Fingerprint, order: Iterable[str] = ()) -> str:
    """The first tensor that differs and by how much; empty: none does."""
    for name in (*order, *first):
        a, b = first.get(name), second.get(name)
        if same_bits(a, b):
            continue
        if a is None or b is None:
            return f"{name}: {'missing in the first' if a is None else 'missing in the second'}"
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name}: {a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
        if a.layout is not torch.strided:
            return f"{name}: sparse values differ"
        worst = (a.double() - b.double()).abs().max().item()
        return f"{name}: differs by up to {worst:.3g}"
    return ""
