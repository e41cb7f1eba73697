"""A block's operators, seen below autograd: which of them count, and what they leave.

Two runs of one block are compared operator by operator, so both must count alike. Views, casts and
allocations do not count: autocast casts a weight once where its cache is warm and again where it is
not, and saved-tensor hooks detach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ._group import COLLECTIVE_NAMESPACES

_UNCOUNTED_NAMESPACES = ("prim", "profiler", "prims")
_UNCOUNTED = frozenset(
    f"aten::{name}"
    for name in (
        "_to_copy", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
        "lift", "lift_fresh", "lift_fresh_copy", "record_stream", "set_",
    )
)  # fmt: skip

# Its result shares its argument's storage without its version counter, and without saying so.
HIDDEN_VIEW = torch.ops.aten._unsafe_view.default

_counted: dict[Any, bool] = {}
_pure: dict[Any, bool] = {}
_written: dict[Any, list[tuple[int, str]]] = {}


def counts(function: Any) -> bool:
    """The operator has a place in a block's sequence."""
    known = _counted.get(function)
    if known is None:
        schema = function._schema
        view = not schema.is_mutable and _aliases(schema)
        known = _counted[function] = not (
            view or function.namespace in _UNCOUNTED_NAMESPACES or schema.name in _UNCOUNTED
        )
    return known


def is_pure(function: Any) -> bool:
    """It writes to none of its arguments and returns none of them, by its own declaration."""
    known = _pure.get(function)
    if known is None:
        schema = function._schema
        known = _pure[function] = not schema.is_mutable and not _aliases(schema)
    return known


def written_by(function: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among its arguments whose bytes it changes."""
    where = _written.get(function)
    if where is None:
        where = _written[function] = [
            (index, argument.name)
            for index, argument in enumerate(function._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
    if not where:
        return []
    given = [args[i] if i < len(args) else kwargs.get(name) for i, name in where]
    return [tensor for tensor in tensors_in(given) if tensor.layout is torch.strided]


def _aliases(schema: Any) -> bool:
    return any(part.alias_info is not None for part in (*schema.arguments, *schema.returns))


def communicates(function: Any) -> bool:
    """A collective: never run on one rank alone."""
    return function.namespace in COLLECTIVE_NAMESPACES


@contextlib.contextmanager
def shared_versions() -> Iterator[None]:
    """Inside a dispatch mode: aliases made here share their tensor's version counter.

    Below autograd they would get one of their own, and a later in-place change would not be seen.
    """
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        yield


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results."""
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class Paused(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that looks away while saved-tensor hooks run their own operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.paused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo is not at work where a mode of ours is: guarding against it would import it, and
        double what the mode costs each operator."""
        return False

    def outside(self, hook: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        """The hook, unseen by the mode."""

        def unseen(tensor: torch.Tensor) -> Any:
            self.paused = True
            try:
                return hook(tensor)
            finally:
                self.paused = False

        return unseen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.paused or not counts(func):
            return func(*args, **(kwargs or {}))
        return self.operator(func, args, kwargs or {})

    def operator(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Runs an operator that counts."""
        raise NotImplementedError
