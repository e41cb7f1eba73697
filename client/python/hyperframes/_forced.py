"""Plans made by order instead of by cost: each feature of HyperFrames on or off, block by block."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from ._engine import Backend, Engine
from ._observe import ObservedEngine, Recorder

PEER, HOST, RECOMPUTE = "peer offload", "host offload", "recompute"
PREFETCH, OVERLAP = "prefetch", "overlapped copies"
SELECTIVE = "selective"  # A way of recomputing: off where RECOMPUTE is.
FEATURES = (RECOMPUTE, SELECTIVE, PEER, HOST, PREFETCH, OVERLAP)

_ALIGNMENT = 512
_STASH, _AHEAD = 64 << 20, 64 << 20  # Bytes under way out and back.

# How the features that are on are used: each run shows one of these.
MAKE_AGAIN, MAKE_CHEAP_AGAIN = "recompute", "selective"
MOVE, MOVE_AT_ONCE = "move", "move at once"


def arrangements(features: Set[str]) -> list[str]:
    """The runs that it takes to see every feature at work; one of all-kept without any.

    Copies that overlap may read a tensor before or after somebody changed it behind autograd's
    back; copies made at once read it before for certain.
    """
    found = [MAKE_AGAIN] if RECOMPUTE in features else []
    if found and SELECTIVE in features:
        found.append(MAKE_CHEAP_AGAIN)
    if PEER in features or HOST in features:
        found += [MOVE, MOVE_AT_ONCE] if OVERLAP in features else [MOVE_AT_ONCE]
    return found or [MOVE_AT_ONCE]


def available(backend: Backend) -> list[str]:
    """The features that this machine can show."""
    lenders = _lenders(backend)
    return [name for name in FEATURES if name not in (PEER, HOST) or name in lenders]


def _lenders(backend: Backend) -> dict[str, dict[str, Any]]:
    """By feature, the device that can lend most."""
    found: dict[str, dict[str, Any]] = {}
    for device in backend.describe().get("devices", ()):
        feature = HOST if device.get("is_host") else PEER
        if device["uuid"] == backend.gpu or int(device.get("lendable_bytes", 0)) <= 0:
            continue
        best = found.get(feature)
        if best is None or int(device["lendable_bytes"]) > int(best["lendable_bytes"]):
            found[feature] = device
    return found


class ForcedBackend:
    """Everything that can be moved or recomputed is, in the given blocks and by the given features.

    Args:
        blocks: their names; others keep everything. None: all.
    """

    plans_once = False

    def __init__(
        self, backend: Backend, features: Set[str], blocks: Set[str] | None, arrangement: str
    ) -> None:
        self._backend = backend
        self.gpu = backend.gpu
        self.describe = backend.describe
        self.close = backend.close
        self._features = features
        self._blocks = blocks
        self._arrangement = arrangement
        lenders = _lenders(backend)
        self._tiers = [
            (tier, str(lenders[feature]["uuid"]), int(lenders[feature]["lendable_bytes"]))
            for feature, tier in ((PEER, "TIER_PEER"), (HOST, "TIER_HOST"))
            if feature in features and feature in lenders
        ]

    def plan(self, rank_problem: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        needs: dict[tuple[str, str], int] = {}
        blocks = [self._block(block, needs) for block in rank_problem["blocks"]]
        total = sum(s["bytes"] for b in rank_problem["blocks"] for s in b["storages"])
        most = {(tier, device): lendable for tier, device, lendable in self._tiers}
        leases = [
            {"device": device, "tier": tier, "bytes": min(nbytes, most[tier, device])}
            for (tier, device), nbytes in needs.items()
        ]
        rank = {
            "rank": rank_problem.get("rank", 0), "blocks": blocks, "leases": leases,
            "activation_bytes": total, "predicted_activation_peak": total,
            "stash_limit": 0 if self._arrangement == MOVE_AT_ONCE else _STASH,
            "prefetch_limit": _AHEAD,
        }  # fmt: skip
        return {"id": "forced", "ranks": [rank]}

    def _block(self, block: dict[str, Any], needs: dict[tuple[str, str], int]) -> dict[str, Any]:
        name = str(block["name"])
        chosen = self._blocks is None or name.partition("#")[0] in self._blocks
        again = self._arrangement in (MAKE_AGAIN, MAKE_CHEAP_AGAIN)
        storages = [
            self._decision(storage, chosen and (storage["is_input"] or not again), needs)
            for storage in block["storages"]
        ]
        decided = {"name": name, "policy": "POLICY_SAVE", "storages": storages, "reason": "forced"}
        if not chosen or not again or block["not_recomputable"]:
            return decided
        decided["policy"] = "POLICY_RECOMPUTE"
        if self._arrangement == MAKE_CHEAP_AGAIN and block["selective"]:
            decided["policy"] = "POLICY_SELECTIVE"
            decided["selected"] = [self._decision(s, True, needs) for s in block["selective"]]
        return decided

    def _decision(
        self, storage: dict[str, Any], moves: bool, needs: dict[tuple[str, str], int]
    ) -> dict[str, Any]:
        tier, device = "TIER_KEEP", ""
        fixed = storage["unmovable"] or storage.get("unstable")
        if moves and not fixed and self._tiers:
            tier, device, _ = self._tiers[storage["ordinal"] % len(self._tiers)]
            room = -(-int(storage["bytes"]) // _ALIGNMENT) * _ALIGNMENT
            needs[tier, device] = needs.get((tier, device), 0) + room
        return {
            "ordinal": storage["ordinal"], "tier": tier, "device": device, "preferred_offset": "-1",
        }  # fmt: skip

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Engine:
        engine = self._backend.open_engine(plan, options)
        return LimitedEngine(
            engine, prefetch=PREFETCH in self._features, at_once=self._arrangement == MOVE_AT_ONCE
        )


def forced_selective(backend: Backend, tier: str, blocks: Set[str] | None = None) -> ForcedBackend:
    """Every block SELECTIVE with all of its expensive outputs saved: for benchmarks and tests.

    Args:
        tier: "keep", "peer" or "host", of the outputs and the blocks' inputs.
        blocks: their names; None: all.
    """
    mover = {"keep": set(), "peer": {PEER}, "host": {HOST}}[tier]
    features = {RECOMPUTE, SELECTIVE, PREFETCH, OVERLAP} | mover
    return ForcedBackend(backend, features, blocks, MAKE_CHEAP_AGAIN)


class LimitedEngine(ObservedEngine):
    """An engine without prefetch, or whose copy-outs are finished before the next operator."""

    def __init__(self, engine: Engine, *, prefetch: bool, at_once: bool) -> None:
        super().__init__(engine, Recorder())
        self._prefetch = prefetch
        self._at_once = at_once

    def take_releasable(self, limit: int, stream: int) -> list[int]:
        return super().take_releasable(0 if self._at_once else limit, stream)

    def next_to_prefetch(self) -> list[tuple[int, int]]:
        return super().next_to_prefetch() if self._prefetch else []
