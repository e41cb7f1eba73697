"""The arguments of calls: how a sample is made of them, and which of them a block writes to.

The key-value cache of transformers' models is one. A block that writes to it does something else
when it runs a second time, so it is measured once and never recomputed. In training the cache
serves nothing and holds every layer's keys and values.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from .errors import FailedPrecondition

_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD
_REMEDY = (
    "call the model with use_cache=False, or set model.config.use_cache = False, as gradient "
    "checkpointing does"
)


def written_argument(args: Any, kwargs: Mapping[str, Any]) -> str:
    """The class of an argument that is a cache; empty: there is none."""
    for value in (*args, *kwargs.values()):
        # By what it can do: transformers has a dozen classes of them, and others have their own.
        if callable(getattr(value, "update", None)) and hasattr(value, "get_seq_length"):
            return type(value).__name__
    return ""


def warn_written(block: str, kind: str) -> bool:
    """Tells the user; True: told."""
    warnings.warn(
        f"HyperFrames: {block} is given a {kind}, which it writes to: it cannot be recomputed, and "
        f"what the cache holds is not freed by moving it. For training {_REMEDY}.",
        stacklevel=2,
    )
    return True


def refuse_written_sample(args: Any, kwargs: Mapping[str, Any]) -> None:
    """FailedPrecondition: measuring would fill the caller's own cache."""
    kind = written_argument(args, kwargs)
    if kind:
        raise FailedPrecondition(
            f"The sample holds a {kind}, and a profile would write to it: {_REMEDY}."
        )


def as_sample(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A call's arguments as profile() takes them: positional ones or keywords.

    FailedPrecondition: both, and forward's signature has no names for the positional ones.
    """
    if not kwargs:
        return args
    bound = inspect.signature(model.forward).bind_partial(*args)
    names = [name for name in bound.arguments if bound.signature.parameters[name].kind is _NAMED]
    if len(names) < len(args):
        raise FailedPrecondition(
            f"{type(model).__name__} is called with {len(args)} positional arguments and with "
            "keywords, and its forward does not name all of the positional ones: call it with "
            "keywords alone, or give hf.hyperframes a profile=."
        )
    return {**{name: bound.arguments[name] for name in names}, **kwargs}
