"""What in a user's model may get in HyperFrames' way, and how to take it out for one run."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._blocks import MIN_MOVABLE
from ._meter import passing_hooks

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MOST_NODES = 10_000


@dataclass(frozen=True)
class Suspect:
    """Something that can be left out. ``off`` does so while it is entered."""

    name: str  # "hook scale on blocks.1.up".
    off: Callable[[], AbstractContextManager[None]]


def suspects(model: nn.Module, own: frozenset[int] = frozenset()) -> list[Suspect]:
    """Hooks of the user's, dropout, in-place modules, compiled modules. ``own``: ids of hooks of
    ours that are none."""
    found: list[Suspect] = []
    for name, module in model.named_modules():
        where = name or type(model).__name__
        for kind in _HOOKS:
            for key, hook in getattr(module, kind).items():
                if id(hook) in own:
                    continue
                title = getattr(hook, "__qualname__", type(hook).__qualname__)
                found.append(
                    Suspect(f"hook {title} on {where}", _without(getattr(module, kind), key))
                )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p:
            found.append(Suspect(f"dropout {where}", _set(module, "p", 0.0)))
        if getattr(module, "inplace", False) is True:
            found.append(Suspect(f"in-place module {where}", _set(module, "inplace", False)))
        if getattr(module, "_compiled_call_impl", None) is not None:
            found.append(
                Suspect(f"torch.compile on {where}", _set(module, "_compiled_call_impl", None))
            )
    return found


def _set(owner: Any, attribute: str, value: Any) -> Callable[[], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def off() -> Iterator[None]:
        before = getattr(owner, attribute)
        setattr(owner, attribute, value)
        try:
            yield
        finally:
            setattr(owner, attribute, before)

    return off


def _without(hooks: Any, key: Any) -> Callable[[], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def off() -> Iterator[None]:
        before = dict(hooks)
        hooks.pop(key, None)
        try:
            yield
        finally:
            hooks.clear()  # In the order in which they were.
            hooks.update(before)

    return off


@contextlib.contextmanager
def all_off(chosen: list[Suspect]) -> Iterator[None]:
    """Leaves several out at once."""
    with contextlib.ExitStack() as stack:
        for suspect in chosen:
            stack.enter_context(suspect.off())
        yield


def digest(values: Any) -> str:
    """A short hash of all tensors in a tree; equal bits, equal hash."""
    total = hashlib.sha1(usedforsecurity=False)
    for leaf in _pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
            flat = leaf.detach().cpu().contiguous()
            total.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            total.update(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))
    return total.hexdigest()


@contextlib.contextmanager
def traced(model: nn.Module) -> Iterator[list[tuple[str, str, str]]]:
    """Collects (module, hash of its inputs, hash of its outputs) in order of completion."""
    calls: list[tuple[str, str, str]] = []
    entered: dict[str, list[str]] = {}
    removals = []

    def before(name: str) -> Any:
        return lambda module, args, kwargs: entered.setdefault(name, []).append(
            digest((args, kwargs))
        )

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            pending = entered.get(name)
            calls.append((name, pending.pop() if pending else "", digest(output)))

        return hook

    for name, module in model.named_modules():
        where = name or type(model).__name__
        removals.append(
            module.register_forward_pre_hook(before(where), with_kwargs=True, prepend=True)
        )
        removals.append(module.register_forward_hook(after(where)))
    try:
        yield calls
    finally:
        for removal in removals:
            removal.remove()


def first_unequal_call(
    first: list[tuple[str, str, str]], second: list[tuple[str, str, str]]
) -> str:
    """The innermost module that made other outputs from equal inputs; empty: none did."""
    for (name, took, gave), (other, took_too, gave_too) in zip(first, second, strict=False):
        if name != other:
            return name
        if took == took_too and gave != gave_too:
            return name
    return ""


@contextlib.contextmanager
def inside(blocks: Mapping[str, nn.Module]) -> Iterator[list[str]]:
    """A stack of the names of the blocks that are running."""
    stack: list[str] = []
    removals = []

    def enter(name: str) -> Any:
        return lambda module, args: stack.append(name)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()

    for name, module in blocks.items():
        removals.append(module.register_forward_pre_hook(enter(name), prepend=True))
        removals.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield stack
    finally:
        for removal in removals:
            removal.remove()


@dataclass(frozen=True)
class Changed:
    """A saved tensor that was written to afterwards, past the version counter."""

    block: str
    dtype: str
    shape: tuple[int, ...]


@contextlib.contextmanager
def watched_saves(blocks: Mapping[str, nn.Module]) -> Iterator[list[Changed]]:
    """Collects tensors whose bytes at unpack are not those at pack. Slow: hashes everything."""
    changed: list[Changed] = []
    with inside(blocks) as stack:

        def pack(tensor: torch.Tensor) -> Any:
            kept = tensor.detach()
            return kept, digest(kept), stack[-1] if stack else "the model outside its blocks"

        def unpack(packed: Any) -> torch.Tensor:
            kept: torch.Tensor = packed[0]
            if digest(kept) != packed[1]:
                name = str(kept.dtype).removeprefix("torch.")
                changed.append(Changed(packed[2], name, tuple(kept.shape)))
            return kept

        with passing_hooks(pack, unpack):
            yield changed


@dataclass(frozen=True)
class Stash:
    """Tensors that a custom autograd Function keeps on its ctx, out of the hooks' sight."""

    block: str
    function: str
    attribute: str
    nbytes: int


@contextlib.contextmanager
def stashes(blocks: Mapping[str, nn.Module]) -> Iterator[list[Stash]]:
    """Collects what each block's graph keeps on ctx, as the block's forward ends."""
    found: list[Stash] = []
    removals = []

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            found.extend(_stashed(name, (args, kwargs), output))

        return hook

    for name, module in blocks.items():
        removals.append(module.register_forward_hook(after(name), with_kwargs=True))
    try:
        yield found
    finally:
        for removal in removals:
            removal.remove()


def _stashed(name: str, inputs: Any, output: Any) -> Iterator[Stash]:
    def roots(tree: Any) -> list[Any]:
        leaves = [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
        return [leaf.grad_fn for leaf in leaves if leaf.grad_fn is not None]

    seen = set(roots(inputs))
    queue = [node for node in roots(output) if node not in seen]
    while queue and len(seen) < _MOST_NODES:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        queue += [below for below, _ in node.next_functions if below is not None]
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            for attribute, value in vars(node).items():
                tensors = [x for x in _pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
                nbytes = sum(x.numel() * x.element_size() for x in tensors)
                if nbytes >= MIN_MOVABLE:
                    function = type(node).__name__.removesuffix("Backward")
                    yield Stash(name, function, attribute, nbytes)
