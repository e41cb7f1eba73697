"""Sessions whose blocks put away what they make again, and what they may leave behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hyperframes as hf
from cases.backends import BACKENDS
from cases.selective_models import WIDTH, sample
from hyperframes._engine import KEEP
from hyperframes.plan import Plan

BOTH = ["unkind", "chaotic"]  # Of the backends: the double, and the real engine at its worst.


def moved(block: str, storage: dict[str, Any]) -> str:
    """Every block runs again, its inputs wait on a peer, and what it makes again everywhere."""
    return "recompute:" + ("peer", "host", "keep")[storage["ordinal"] % 3]


def all_moved(block: str, storage: dict[str, Any]) -> str:
    return "recompute:peer"


def by_seed(seed: int) -> Callable[[str, dict[str, Any]], str]:
    """Any policy for any block, any tier for any storage."""

    def rule(block: str, storage: dict[str, Any]) -> str:
        draw = random.Random(f"{seed} {block}")
        policy = draw.choice(("recompute:", "recompute:", ""))
        tier = random.Random(f"{seed} {block} {storage['ordinal']}").choice(
            ("peer", "host", "keep")
        )
        return policy + tier

    return rule


def session(
    model: nn.Module, x: Any, rule: Any = all_moved, backend: Any = "unkind", **options: Any
) -> Any:
    made = BACKENDS[backend](rule) if isinstance(backend, str) else backend
    profile = hf.profile(model, x, **options)
    return hf.hyperframes(model, profile=profile, _backend=made, activation_budget="1GiB")


def plan_of(context: Any) -> Plan:
    plan: Plan = context.plan
    assert plan.rerun, "no block puts anything away, so nothing is shown"
    return plan


def loss_on(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(sample()).square().mean()
    return loss


def inputs_of(context: Any) -> int:
    plan = plan_of(context)
    return sum(1 for decision in plan.decisions.values() if decision.tier != KEEP)


def left_behind(context: Any) -> list[Any]:
    """Of slots, sources and what meters count."""
    store = context._store
    return [store.live, store.stash, store.moved_bytes(), context.meter.current_bytes]


NOTHING = [set(), {}, 0, 0]


class Chain(nn.Module):
    """Many storages of one size, of which few are alive at once."""

    def __init__(self, length: int = 16) -> None:
        super().__init__()
        self.parts = nn.ParameterList(
            nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5) for _ in range(length)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = torch.tanh(x @ part)
        return x
