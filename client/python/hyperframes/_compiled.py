"""Blocks on which ``module.compile()`` was called: what is done around them stays outside.

Such a module's call is one compiled function, its hooks and its forward inside. A hook or a forward
of ours would be traced with them, and Dynamo, which cannot trace it, would give the whole block up:
it would run eagerly, and nothing would say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

_CALL = "_compiled_call_impl"


def calls_compiled(module: nn.Module) -> bool:
    """``module.compile()`` was called on it."""
    return getattr(module, _CALL, None) is not None


def around_call(
    module: nn.Module, before: Callable[..., Any], after: Callable[..., Any]
) -> Callable[[], None]:
    """Calls ``before(module, args, kwargs)`` and ``after(module)``, also when it raises, around
    every call of the module: its hooks, or whatever of it is compiled, are inside.

    Returns:
        What takes both away again.
    """
    if not calls_compiled(module):
        first = module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        last = module.register_forward_hook(after, always_call=True)

        def remove() -> None:
            first.remove()
            last.remove()

        return remove
    compiled = getattr(module, _CALL)

    def call(*args: Any, **kwargs: Any) -> Any:
        before(module, args, kwargs)
        try:
            return compiled(*args, **kwargs)
        finally:
            after(module)

    setattr(module, _CALL, call)
    return lambda: setattr(module, _CALL, compiled)


@contextlib.contextmanager
def replaced_call(
    module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """The module is called by ``make(its call)``: its compiled call when it has one, else its
    forward. Puts back exactly what was there."""
    name = _CALL if calls_compiled(module) else "forward"
    had = name in module.__dict__
    before = module.__dict__.get(name)
    setattr(module, name, make(getattr(module, name)))
    try:
        yield
    finally:
        if had:
            module.__dict__[name] = before
        else:
            module.__dict__.pop(name, None)
