"""The blocks of a session that run again in backward: their frames, and what they cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ._compiled import is_compiled
from ._compiled_replay import run_compiled
from ._frames import FrameStore
from ._inflight import ForwardToken
from ._recompute import RecomputeFrame
from ._selective import Catching, SelectiveCounts, SelectiveFrame, Shelf
from .plan import Plan


class Replays:
    """Makes one frame for each call of such a block, by the plan's policy for it."""

    def __init__(self) -> None:
        self.recompute_ns: dict[str, int] = {}  # By block.
        self._selective_ns = 0
        self._blocks = 0
        self._selective_blocks = 0
        self._selective = SelectiveCounts()

    def counts(self) -> dict[str, Any]:
        """For stats(): blocks that ran again, and of those the selective ones."""
        outputs = dataclasses.asdict(self._selective)
        return {
            "recomputed_blocks": self._blocks,
            "selective_blocks": self._selective_blocks,
            "selective_recompute_s": self._selective_ns / 1e9,
            **{f"selective_{name}": value for name, value in outputs.items()},
        }

    def _count(self, name: str, nanoseconds: int) -> None:
        self.recompute_ns[name] = self.recompute_ns.get(name, 0) + nanoseconds
        self._blocks += 1

    def _count_selective(self, name: str, nanoseconds: int) -> None:
        self._count(name, nanoseconds)
        self._selective_blocks += 1
        self._selective_ns += nanoseconds

    def run(
        self,
        key: str,
        module: nn.Module,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Any,
        *,
        plan: Plan,
        store: FrameStore,
        micro_batch: int,
        token: ForwardToken | None,
        device: torch.device,
    ) -> Any:
        """The block's forward under a frame of its policy."""
        if is_compiled(module):
            return run_compiled(key, module, forward, args, kwargs, store.device, self._count)
        choices = plan.selected.get(key)
        if not choices:
            frame = RecomputeFrame(key, module, forward, args, kwargs, device, self._count)
            return frame.run(args, kwargs)
        shelf = Shelf(store, device, micro_batch, plan.index[key], token)
        selective = SelectiveFrame(
            key, module, forward, args, kwargs, device, self._count_selective,
            Catching(key, choices, shelf, self._selective), self._selective,
        )  # fmt: skip
        return selective.run(args, kwargs)
