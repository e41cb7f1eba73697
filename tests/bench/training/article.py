"""The case that the idea was first told with: 60 GB of activations, 80 % of them on idle peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .hyper import NOTHING_AGAIN, HyperMode
from .measure import Measured, Meter, Plan, measure, row_of
from .modes import Modes
from .workload import FineTune


class Borrowing:
    """Everything but ``own_share`` of the activations waits on peers."""

    name = "peers_hold_the_rest"
    references = ("nothing", "checkpoint")
    must_be_equal = True

    def __init__(self, workload: FineTune, own_share: float) -> None:
        self._workload = workload
        self._share = own_share
        self._hyper: HyperMode | None = None

    def prepare(self, meter: Meter) -> None:
        profile = self._workload.profile()
        self._hyper = HyperMode(
            self._workload, profile, forbid=("host", *NOTHING_AGAIN),
            activation_budget=int(profile.activation_bytes * self._share),
        )  # fmt: skip

    def entered(self) -> Any:
        assert self._hyper is not None
        return self._hyper.entered()

    def figures(self) -> dict[str, Any]:
        assert self._hyper is not None and self._hyper.session is not None
        stats = self._hyper.session.stats()
        plan = self._hyper.session.plan
        return {
            **self._hyper.figures(),
            "own_activation_peak_bytes": stats["activation_peak"],
            "activation_budget_bytes": stats["activation_budget"],
            "lent_bytes": plan.lease_needs() if plan is not None else {},
        }

    def close(self) -> None:
        if self._hyper is not None:
            self._hyper.close()


def run_article(
    workload: FineTune,
    meter: Meter,
    modes: Modes,
    plan: Plan,
    say: Callable[[str], None],
    own_share: float = 0.2,
    keep: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """Nothing, full checkpointing, and a fifth of the activations here. ``keep`` gets the rows so
    far after every round."""
    chosen: list[Any] = [
        modes.make("nothing"),
        modes.make("checkpoint"),
        Borrowing(workload, own_share),
    ]
    lenders = max(0, torch.cuda.device_count() - 1)

    def rows(measured: list[Measured]) -> list[dict[str, Any]]:
        return [
            {
                "part": "article",
                "length": workload.length,
                "lenders": lenders,
                **row_of(one, measured, workload.tokens),
            }
            for one in measured
        ]

    return rows(measure(chosen, meter, plan, say=say, note=lambda found: keep(rows(found))))
