"""An engine in this process that is as unkind as the contract allows.

Copy-outs happen at the last permitted moment, reload buffers hold poison until they are waited for,
freed slots are poisoned. Whoever lets go of a source too early or reads too soon gets poison.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from cases.small_gpt import DEVICE
from hyperframes._engine import Placement
from hyperframes.errors import FailedPrecondition, NotFound

POISON = 0xA5
Rule = Callable[[str, dict[str, Any]], str]


class FakeEngine:
    def __init__(self, stash_limit: int = 1 << 16, prefetch_limit: int = 1 << 20) -> None:
        if DEVICE.type != "cpu":
            pytest.skip("this double moves the processor's memory only")
        self.stash_limit = stash_limit
        self.prefetch_limit = prefetch_limit
        self.slots: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.tiers: dict[int, int] = {}
        self.sources: dict[int, int] = {}  # Not yet copied, in put order.
        self.finished: list[int] = []  # Copied, not yet reported releasable.
        self.destinations: dict[int, int] = {}
        self.order: list[int] = []
        self.next_handle = 0
        self.puts = [0, 0, 0]
        self.bytes_out = [0, 0, 0]
        self.fetches = 0
        self.quiesced = 0
        self.closed = False
        self.reports: list[tuple[int, ...]] = []
        self.micro_batches: tuple[int, ...] = ()  # As reported last.
        self.revocation: str | None = None
        self.keep_everything = False

    def put(
        self, micro_batch: int, block: int, ordinal: int, source: int, nbytes: int, tier: int,
        device: str, preferred_offset: int, stream: int,
    ) -> Placement:  # fmt: skip
        assert not self.closed
        assert nbytes > 0
        assert source
        if self.keep_everything:
            return Placement(0, 0, True)
        self.next_handle += 1
        handle = self.next_handle
        self.slots[handle] = (ctypes.c_ubyte * nbytes)()
        self.sizes[handle] = nbytes
        self.tiers[handle] = tier
        self.sources[handle] = source
        self.order.append(handle)
        self.puts[tier] += 1
        self.bytes_out[tier] += nbytes
        return Placement(handle, tier, False)

    def _copy_out(self, handle: int) -> None:
        source = self.sources.pop(handle)
        if handle in self.slots:
            ctypes.memmove(self.slots[handle], source, self.sizes[handle])
        self.finished.append(handle)

    def take_releasable(self, limit: int, stream: int) -> list[int]:
        bound = self.stash_limit if limit < 0 else limit
        while self.sources and sum(self.sizes[h] for h in self.sources) > bound:
            self._copy_out(next(iter(self.sources)))
        finished, self.finished = self.finished, []
        return finished

    def fetch(self, handle: int, destination: int, is_prefetch: bool, stream: int) -> None:
        if handle not in self.slots:
            raise NotFound(f"handle {handle}")
        if handle in self.sources:
            self._copy_out(handle)
        ctypes.memset(destination, POISON, self.sizes[handle])
        self.destinations[handle] = destination
        self.fetches += 1

    def wait(self, handle: int, stream: int) -> None:
        if handle not in self.destinations:
            raise FailedPrecondition(f"handle {handle} was not fetched")
        destination = self.destinations.pop(handle)
        ctypes.memmove(destination, self.slots[handle], self.sizes[handle])

    def next_to_prefetch(self) -> list[tuple[int, int]]:
        due: list[tuple[int, int]] = []
        total = sum(self.sizes[h] for h in self.destinations)
        for handle in reversed(self.order):
            if handle in self.destinations or handle in self.sources:
                continue
            if due and total + self.sizes[handle] > self.prefetch_limit:
                break
            total += self.sizes[handle]
            due.append((handle, self.sizes[handle]))
            if len(due) == 3:
                break
        return due

    def drop(self, handle: int) -> None:
        slot = self.slots.pop(handle, None)
        if slot is None:
            return
        assert handle not in self.destinations, "dropped while a reload was under way"
        ctypes.memset(slot, POISON, self.sizes[handle])
        self.order.remove(handle)

    def set_limits(self, stash: int, prefetch: int) -> None:
        self.limits = stash, prefetch

    def quiesce(self) -> None:
        if self.slots:
            raise FailedPrecondition(f"{len(self.slots)} storages are live")
        self.quiesced += 1

    def stats(self) -> dict[str, Any]:
        names = ("keep", "peer", "host")
        return {
            "bytes_out": dict(zip(names, self.bytes_out, strict=True)),
            "exposed_wait": 0.0,
            "live_storages": len(self.slots),
        }

    def report(self, *values: int) -> None:
        self.reports.append(values)

    def report_micro_batches(self, *values: int) -> None:
        self.micro_batches = values

    def take_revocation(self) -> str | None:
        lease, self.revocation = self.revocation, None
        return lease

    def close(self) -> None:
        self.closed = True


class FakeBackend:
    """Plans by a rule: for each block and storage "keep", "peer", "host", "recompute" (or with the
    tier in which it waits once it was made again, "recompute:host"), or "selective" with the tier
    of the operators' outputs ("selective:host")."""

    gpu = "SIM-test-0"
    plans_once = False

    def __init__(self, rule: Rule, **engine: int) -> None:
        self.rule = rule
        self.engine_options = engine
        self.engines: list[FakeEngine] = []
        self.problems: list[dict[str, Any]] = []

    @property
    def engine(self) -> FakeEngine:
        return self.engines[-1]

    def describe(self) -> dict[str, Any]:
        return {"devices": [], "links": []}

    def plan(self, rank_problem: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        self.problems.append(rank_problem)
        blocks = []
        for block in rank_problem["blocks"]:
            policy = "POLICY_SAVE"
            storages = []
            selected: list[dict[str, Any]] = []
            for storage in block["storages"]:
                tier = self.rule(block["name"], storage)
                if tier.startswith("selective"):
                    selected = self._selected(block, tier.partition(":")[2], options)
                    if selected and not block["not_recomputable"]:
                        policy = "POLICY_SELECTIVE"
                    tier = "recompute"
                again, _, word = tier.partition(":")
                if again == "recompute" and policy == "POLICY_SAVE":
                    policy = "POLICY_SAVE" if block["not_recomputable"] else "POLICY_RECOMPUTE"
                if again == "recompute":
                    tier = "peer" if storage["is_input"] else word or "keep"
                if storage["unmovable"] or options.get("no_lenders"):
                    tier = "keep"
                storages.append(
                    {
                        "ordinal": storage["ordinal"],
                        "tier": f"TIER_{tier.upper()}",
                        "device": "" if tier == "keep" else f"{tier}-device",
                        "preferred_offset": "-1",
                    }
                )
            blocks.append(
                {
                    "name": block["name"], "policy": policy, "storages": storages,
                    "selected": selected, "reason": "rule",
                }
            )  # fmt: skip
        total = sum(s["bytes"] for b in rank_problem["blocks"] for s in b["storages"])
        return {
            "id": "fake",
            "ranks": [
                {
                    "rank": 0,
                    "blocks": blocks,
                    "activation_bytes": str(total),
                    "predicted_activation_peak": str(total),
                    "leases": [],
                }
            ],
        }

    def _selected(
        self, block: dict[str, Any], word: str, options: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Every candidate in the named tier; without one, by turns in all of them."""
        found = []
        for storage in block["selective"]:
            tier = word or ("keep", "peer", "host")[storage["ordinal"] % 3]
            if storage["unmovable"] or options.get("no_lenders"):
                tier = "keep"
            found.append(
                {
                    "ordinal": storage["ordinal"],
                    "tier": f"TIER_{tier.upper()}",
                    "device": "" if tier == "keep" else f"{tier}-device",
                    "preferred_offset": "-1",
                }
            )
        return found

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> FakeEngine:
        self.engines.append(FakeEngine(**self.engine_options))
        return self.engines[-1]

    def close(self) -> None:
        pass
