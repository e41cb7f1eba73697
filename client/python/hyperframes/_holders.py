"""Who keeps a tensor's memory alive. For diagnosis only: it looks at every object of the process.

Bounded: one pass over the objects, then at most a few hundred referrers for each storage.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

_PACKAGE = __name__.rpartition(".")[0]
_MOST_VISITED = 300
_MOST_REFERRERS = 64
_DEEPEST = 6
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


def holders(storages: Iterable[torch.UntypedStorage], model: nn.Module) -> dict[int, str]:
    """By ``_cdata`` of the storage, a sentence about who holds it; every storage gets one."""
    wanted = {storage._cdata for storage in storages}
    tensors = _tensors_over(wanted)
    names = {id(module): name or type(model).__name__ for name, module in model.named_modules()}
    return {key: _sentence(tensors.get(key, []), names) for key in wanted}


def _sentence(tensors: list[torch.Tensor], names: dict[int, str]) -> str:
    if not tensors:
        return "held where Python cannot see it: an autograd node that saved it outside the hooks"
    while tensors:
        found = _holder_of(tensors.pop(), names)
        if found:
            return f"held by {found}"
    return "held by a tensor whose owner could not be found"


def _tensors_over(wanted: set[int]) -> dict[int, list[torch.Tensor]]:
    found: dict[int, list[torch.Tensor]] = {}
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), torch.Tensor):
            continue
        try:
            key = candidate.untyped_storage()._cdata
        except Exception:
            continue  # A tensor without storage: sparse, fake, or a subclass of somebody's.
        if key in wanted:
            found.setdefault(key, []).append(candidate)
    return found


def _stack() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            yield frame
        frame = frame.f_back


def _holder_of(target: object, names: dict[int, str]) -> str:
    """Breadth first from the tensor to something that has a name; empty: none was found."""
    queue: deque[tuple[object, str, int]] = deque([(target, "", 0)])
    seen = {id(target), id(queue)}
    ours = {id(queue), id(seen), id(names)}
    while queue and len(seen) < _MOST_VISITED:
        thing, inside, depth = queue.popleft()
        local = _local_name(thing)
        if local:
            return f"{inside}{local}"
        for referrer in gc.get_referrers(thing)[:_MOST_REFERRERS]:
            if id(referrer) in seen or id(referrer) in ours or _is_ours(referrer):
                continue
            seen.add(id(referrer))
            text = _describe(referrer, thing, names)
            if text:
                return f"{inside}{text}"
            if depth < _DEEPEST:
                queue.append((referrer, inside + _step(referrer), depth + 1))
    return ""


def _is_ours(referrer: object) -> bool:
    if isinstance(referrer, types.FrameType):
        return str(referrer.f_globals.get("__name__", "")).startswith(_PACKAGE)
    # The list that collected the tensors, and what gc itself made on the way.
    return type(referrer).__name__ in ("list_iterator", "tuple_iterator")


def _step(referrer: object) -> str:
    """What is walked through: "a list of " before the name of who has the list."""
    if isinstance(referrer, dict) and all(isinstance(key, str) for key in list(referrer)[:4]):
        return ""  # Usually the attributes of what comes next.
    if isinstance(referrer, _CONTAINERS):
        return f"a {type(referrer).__name__} with {len(referrer)} elements, "
    return ""


def _local_name(thing: object) -> str:
    for frame in _stack():
        for name, value in list(frame.f_locals.items()):
            if value is thing and name != "self":
                code = frame.f_code
                if name in frame.f_globals and frame.f_locals is frame.f_globals:
                    return f"global variable {name!r} of {code.co_filename.rpartition('/')[2]}"
                where = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
                return f"local variable {name!r} of {code.co_qualname} ({where})"
    return ""


def _describe(referrer: object, thing: object, names: dict[int, str]) -> str:
    """A name for the referrer; empty where one must look further up."""
    if isinstance(referrer, dict):
        return _owner_of_dict(referrer, thing, names)
    if isinstance(referrer, types.CellType):
        return _closure(referrer)
    if isinstance(referrer, types.FrameType):
        return f"a local variable of {referrer.f_code.co_qualname}"
    if isinstance(referrer, (*_CONTAINERS, torch.Tensor)):
        return ""
    attribute = _attribute(referrer, thing)
    return f"{attribute} of {_object_name(referrer, names)}" if attribute else ""


def _object_name(owner: object, names: dict[int, str]) -> str:
    if isinstance(owner, nn.Module):
        return f"module {names.get(id(owner), type(owner).__qualname__)}"
    if isinstance(owner, type):
        return f"class {owner.__qualname__}"
    return f"a {type(owner).__qualname__} object"


def _attribute(owner: object, thing: object) -> str:
    try:
        values = dict(vars(owner))
    except TypeError:
        values = {}
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(Exception):  # Somebody's descriptor.
                values.setdefault(slot, getattr(owner, slot))
    return next((f"attribute {name!r}" for name, value in values.items() if value is thing), "")


def _owner_of_dict(attributes: dict[Any, Any], thing: object, names: dict[int, str]) -> str:
    key = next((key for key, value in list(attributes.items()) if value is thing), None)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", None) is attributes:
            return f"global variable {key!r} of {module.__name__}"
    for owner in gc.get_referrers(attributes)[:_MOST_REFERRERS]:
        if isinstance(owner, (types.FrameType, *_CONTAINERS)):
            continue
        if getattr(owner, "__dict__", None) is attributes:
            return f"attribute {key!r} of {_object_name(owner, names)}"
        if isinstance(owner, types.FunctionType) and owner.__globals__ is attributes:
            return f"global variable {key!r} of {owner.__module__}"
    return ""


def _closure(cell: types.CellType) -> str:
    for closure in gc.get_referrers(cell)[:_MOST_REFERRERS]:
        if not isinstance(closure, tuple):
            continue
        for function in gc.get_referrers(closure)[:_MOST_REFERRERS]:
            if isinstance(function, types.FunctionType) and function.__closure__ is closure:
                index = closure.index(cell)
                name = function.__code__.co_freevars[index]
                return f"variable {name!r} in the closure of {function.__qualname__}"
    return ""
