"""How the cases put a small model under frames: which tier by which rule, on which backend."""

from __future__ import annotations

from typing import Any

from torch import nn

import hyperframes as hf
from cases.backends import BACKENDS, default_backend
from cases.small_gpt import batch, loss_of


def mixed(block: str, storage: dict[str, Any]) -> str:
    if block.endswith("1"):
        return "recompute"
    return ("peer", "host", "keep")[storage["ordinal"] % 3]


def recompute(block: str, storage: dict[str, Any]) -> str:
    return "recompute"


def peer(block: str, storage: dict[str, Any]) -> str:
    return "peer"


RULES = {"mixed": mixed, "recompute": recompute, "peer": peer}


def profiled(model: nn.Module, **options: Any) -> hf.Profile:
    ids, targets = batch(0)
    return hf.profile(model, ids, loss_fn=lambda out: loss_of(out, targets), **options)


def framed(
    model: nn.Module, rule: Any, backend_name: str = "", _with: Any = None, **options: Any
) -> Any:
    options.setdefault("activation_budget", "1GiB")  # The rule decides, not the budget.
    backend = _with or (BACKENDS[backend_name] if backend_name else default_backend)(rule)
    return hf.hyperframes(model, profile=profiled(model), _backend=backend, **options)
