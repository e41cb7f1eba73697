"""The blocks of a session that run again in backward: their frames, and what they cost."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from ._compiled import is_compiled
from ._compiled_replay import run_compiled
from ._frames import FrameStore
from ._inflight import ForwardToken
from ._meter import ParameterStorages
from ._recompute import BlockRun, RecomputeFrame
from ._rerun import Elsewhere, MovedFrame, Seen
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
        self._moved = [0, 0]  # Storages and bytes.
        # Of the forward that runs: what blocks saved that will put it away when they run again.
        self._seen: tuple[weakref.ref[ForwardToken] | None, Seen] = None, Seen()

    def counts(self) -> dict[str, Any]:
        """For stats(): blocks that ran again, and of those the selective ones."""
        outputs = dataclasses.asdict(self._selective)
        return {
            "recomputed_blocks": self._blocks,
            "rerun_moved_storages": self._moved[0],
            "rerun_moved_bytes": self._moved[1],
            "selective_blocks": self._selective_blocks,
            "selective_recompute_s": self._selective_ns / 1e9,
            **{f"selective_{name}": value for name, value in outputs.items()},
        }

    def _count(self, name: str, nanoseconds: int) -> None:
        self.recompute_ns[name] = self.recompute_ns.get(name, 0) + nanoseconds
        self._blocks += 1

    def _count_moved(self, nbytes: int) -> None:
        self._moved[0] += 1
        self._moved[1] += nbytes

    def _seen_in(self, token: ForwardToken | None) -> Seen:
        of, seen = self._seen
        if token is None or of is None or of() is not token:
            seen = Seen()
            self._seen = weakref.ref(token) if token is not None else None, seen
        return seen

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
        plan: Plan,
        *,
        store: FrameStore,
        micro_batch: int,
        token: ForwardToken | None,
        parameters: ParameterStorages,
    ) -> Any:
        """The block's forward under a frame of its policy."""
        run = BlockRun(key, module, forward, args, kwargs, store.device, self._count)
        if is_compiled(module):
            return run_compiled(run)
        choices = plan.selected.get(key)
        if choices:
            shelf = Shelf(store, store.device, micro_batch, plan.index[key], token)
            mode = Catching(key, choices, shelf, self._selective)
            run = run._replace(on_recompute=self._count_selective)
            return SelectiveFrame(run, mode, self._selective).run(args, kwargs)
        if key in plan.rerun:
            seen = self._seen_in(token)
            elsewhere = Elsewhere(store, plan, micro_batch, parameters, seen, self._count_moved)
            return MovedFrame(run, elsewhere).run(args, kwargs)
        return RecomputeFrame(run).run(args, kwargs)
