"""How a block under torch.compile is called: around its compiled code, never inside it.

Whatever stands inside is traced: a hook of ours on such a module would become part of the graph, or
break it into pieces and be compiled itself. ``module.compile()`` compiles the call with all module
hooks, ``torch.compile(module)`` makes an OptimizedModule whose forward is the compiled call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .errors import FailedPrecondition


def is_compiled(module: nn.Module) -> bool:
    """torch.compile is on the block: its backward may overwrite an unpacked tensor."""
    return _is_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None


def _is_wrapper(module: nn.Module) -> bool:
    # fully_shard() makes its class a FSDPOptimizedModule.
    return any(kind.__name__ == "OptimizedModule" for kind in type(module).__mro__)


def runs_hooks(module: nn.Module) -> bool:
    """Hooks of the block's own are part of its compiled call: they run as often as that does."""
    inner: Any = module._orig_mod if _is_wrapper(module) else module
    return bool(
        inner._forward_hooks
        or inner._forward_pre_hooks
        or inner._backward_hooks
        or inner._backward_pre_hooks
    )


def records_graphs(module: nn.Module) -> bool:
    """It is compiled into CUDA graphs, as mode="reduce-overhead" has it."""
    read = getattr(getattr(module, call_attribute(module)), "get_compiler_config", None)
    settings = read() if read is not None else None  # None too where it is not inductor's.
    return bool(settings and settings.get("triton.cudagraphs"))


def call_attribute(module: nn.Module) -> str:
    """What to replace to stand around a call of the module: its forward, or all of it."""
    if not _is_wrapper(module) and is_compiled(module):
        return "_compiled_call_impl"
    return "forward"


def replace_call(module: nn.Module, call: Callable[..., Any]) -> Callable[[], None]:
    """Sets ``call`` in the place of call_attribute(). Returns what puts back exactly what was
    there."""
    name = call_attribute(module)
    had = name in module.__dict__
    before = module.__dict__.get(name)

    def restore() -> None:
        if had:
            module.__dict__[name] = before
        else:
            module.__dict__.pop(name, None)

    setattr(module, name, call)
    return restore


@contextlib.contextmanager
def replaced_call(
    module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """The module is called by ``make(what calls it now)`` meanwhile."""
    restore = replace_call(module, make(getattr(module, call_attribute(module))))
    try:
        yield
    finally:
        restore()


def around_compiled(
    module: nn.Module,
    before: Callable[[nn.Module, Any, Any], None],
    after: Callable[[nn.Module], None],
    forward: Callable[..., Any],
) -> Callable[..., Any]:
    """Calls ``before(module, args, kwargs)`` and ``after(module)`` around each call of ``forward``,
    which calls what is compiled: outside of what is traced. ``after`` also when it raises."""

    def call(*args: Any, **kwargs: Any) -> Any:
        before(module, args, kwargs)
        try:
            return forward(*args, **kwargs)
        finally:
            after(module)

    return call


def refuse_while_traced(what: str) -> None:
    """FailedPrecondition: a hook of ours is being compiled, for compilation came after the context
    was opened, or goes around more than one block."""
    if torch.compiler.is_compiling():
        # The graph ends here: what follows is run, not traced. (A raise that is traced is undone.)
        torch._dynamo.graph_break()
        refuse_whole(f"{what} is called from compiled code (torch.compile inside the context)")


def refuse_whole(what: str) -> None:
    """Raises FailedPrecondition: ``what`` is compiled."""
    raise FailedPrecondition(
        f"{what}, so hooks run only after its whole forward, or are traced: compile each block "
        "instead (for layer in model.layers: layer.compile()), before the context is opened."
    )
