"""Plans as the session looks them up, and the problems that they answer."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import _native
from ._engine import HOST, KEEP, PEER
from ._shared import as_planned
from .errors import InvalidArgument
from .profile import CopySlowdown, Profile

_TIERS = {"TIER_KEEP": KEEP, "TIER_PEER": PEER, "TIER_HOST": HOST}
SAVE, RECOMPUTE, SELECTIVE = "POLICY_SAVE", "POLICY_RECOMPUTE", "POLICY_SELECTIVE"
SCALED_TOLERANCE = 1.25  # A scaled plan's sizes are estimates: that much more is still as planned.


class Decision(NamedTuple):
    """Where one storage waits."""

    tier: int
    device: str
    preferred_offset: int
    nbytes: int  # As profiled; other bytes are other data than was planned for.


class Choice(NamedTuple):
    """An operator whose outputs are saved under SELECTIVE, and where they wait."""

    ordinal: int
    op: str
    nbytes: int  # At most; more is not what was planned. Without outputs too small to move.
    tier: int
    device: str
    preferred_offset: int
    random: bool
    kept_bytes: int = 0


def read_tier(value: Any) -> int:
    """A Tier of the JSON mapping: its name, or its number."""
    return _TIERS[value] if isinstance(value, str) else int(value)


@dataclass
class Plan:
    """One rank's plan.

    Attributes:
        policies: POLICY_SAVE, POLICY_RECOMPUTE, POLICY_SELECTIVE by block.
        decisions: by (block, ordinal).
        index: the block's number for the engine.
        exact: False when it was scaled from another input shape.
        raw: the FramePlan as the planner wrote it.
        inputs: (block, ordinal) of the blocks' own inputs: they wait under RECOMPUTE too.
        rerun: under RECOMPUTE, by block and ordinal, where storages wait in backward once the block
            made them again. Nothing of them is held before: ``decisions`` keeps them.
        selected: under SELECTIVE, by block and the operator's position, whose outputs are saved.
    """

    policies: dict[str, str]
    decisions: dict[tuple[str, int], Decision]
    index: dict[str, int]
    raw: dict[str, Any]
    rank: dict[str, Any]
    exact: bool = True
    reasons: dict[str, str] = field(default_factory=dict)
    inputs: frozenset[tuple[str, int]] = frozenset()
    rerun: dict[str, dict[int, Decision]] = field(default_factory=dict)
    selected: dict[str, dict[int, Choice]] = field(default_factory=dict)
    # Of blocks that run again: index among outputs and ordinal of what they leave to others.
    outputs: dict[str, list[list[int]]] = field(default_factory=dict)
    copy_slowdowns: list[CopySlowdown] = field(default_factory=list)  # That it was priced with.
    saved_again: dict[str, int] = field(default_factory=dict)  # Selected bytes of what SAVE keeps.

    @property
    def predicted_activation_peak(self) -> int:
        """Bytes."""
        return int(self.rank.get("predicted_activation_peak", 0))

    @property
    def predicted_peak(self) -> int:
        """Bytes, with what is resident."""
        return int(self.rank.get("predicted_peak", 0))

    @property
    def activation_bytes(self) -> int:
        """Bytes that "nothing" would hold at its peak."""
        return int(self.rank.get("activation_bytes", 0))

    @property
    def predicted_step_s(self) -> float:
        """Seconds."""
        return float(self.rank.get("predicted_step_s", 0.0))

    @property
    def copy_limits(self) -> tuple[int, int]:
        """Bytes of sources held for copy-outs, and of reloads ahead of their readers, at most."""
        return int(self.rank.get("stash_limit", 0)), int(self.rank.get("prefetch_limit", 0))

    def recomputes(self, block: str) -> bool:
        """The block runs again in backward: it keeps its inputs, and what is selected."""
        return self.policies.get(block) in (RECOMPUTE, SELECTIVE)

    def lookup(self, block: str, ordinal: int, nbytes: int) -> Decision | None:
        """The decision for a storage, when it is the one that was planned."""
        return self._as_planned(self.decisions.get((block, ordinal)), nbytes)

    def lookup_again(self, block: str, ordinal: int, nbytes: int) -> Decision | None:
        """Where a storage waits that a recomputed block makes again; None: it stays."""
        return self._as_planned(self.rerun.get(block, {}).get(ordinal), nbytes)

    def _as_planned(self, found: Decision | None, nbytes: int) -> Decision | None:
        if found is None or found.nbytes == nbytes:
            return found
        if not self.exact and nbytes <= found.nbytes * SCALED_TOLERANCE:
            return found
        return None

    def lease_needs(self) -> dict[str, int]:
        """Bytes by lender."""
        needs: dict[str, int] = {}
        for need in self.rank.get("leases", ()):
            device = str(need["device"])
            needs[device] = needs.get(device, 0) + int(need["bytes"])
        return needs

    def explain(self) -> str:
        """A table: block, policy, bytes that wait by tier, bytes made again, reason."""
        size = _native.format_bytes
        lines = [
            f"{'block':<24} {'policy':<9} {'keep':>10} {'peer':>10} {'host':>10}"
            f" {'recomputed':>10}  reason"
        ]
        for block, policy in self.policies.items():
            waiting, again = [0, 0, 0], 0
            for (name, ordinal), decision in self.decisions.items():
                if name != block:
                    continue
                if self.recomputes(block) and (name, ordinal) not in self.inputs:
                    again += decision.nbytes
                else:
                    waiting[decision.tier] += decision.nbytes
            for choice in self.selected.get(block, {}).values():
                waiting[choice.tier] += choice.nbytes
                waiting[KEEP] += choice.kept_bytes
            again = max(0, again - self.saved_again.get(block, 0))
            word = policy.removeprefix("POLICY_").lower()
            lines.append(
                f"{block:<24} {word:<9} {size(waiting[KEEP]):>10} {size(waiting[PEER]):>10}"
                f" {size(waiting[HOST]):>10} {size(again):>10}  {self.reasons[block]}"
            )
        return "\n".join(lines)


def read_plan(raw: dict[str, Any], profile: Profile, rank: int) -> Plan:
    """The rank's part of a FramePlan, joined with the sizes of the profile that it answers."""
    ranks = raw.get("ranks", ())
    mine = next((part for part in ranks if int(part.get("rank", 0)) == rank), None)
    if mine is None:
        raise InvalidArgument(f"the plan has no rank {rank}")
    sizes = {
        (block.name, storage.ordinal): storage.nbytes
        for block in profile.blocks
        for storage in block.storages
    }
    inputs = frozenset(
        (block.name, storage.ordinal)
        for block in profile.blocks
        for storage in block.storages
        if storage.is_input
    )
    others_read = {
        (block.name, read.ordinal)
        for block in profile.blocks
        for read in block.shared
        if read.block == block.name
    }
    outputs = {block.name: block.outputs for block in profile.blocks}
    plan = Plan({}, {}, {}, raw, mine, exact=profile.exact, inputs=inputs)
    plan.copy_slowdowns = profile.copy_slowdowns
    for index, block in enumerate(mine.get("blocks", ())):
        name = str(block["name"])
        plan.index[name] = index
        policy = block.get("policy", SAVE)
        plan.policies[name] = (
            policy if isinstance(policy, str) else (SAVE, RECOMPUTE, SELECTIVE)[int(policy)]
        )
        if plan.policies[name] == SELECTIVE:
            _read_selected(plan, profile, name, block.get("selected", ()))
        plan.reasons[name] = str(block.get("reason", ""))
        if plan.recomputes(name):
            plan.outputs[name] = outputs.get(name, [])
        for storage in block.get("storages", ()):
            ordinal = int(storage.get("ordinal", 0))
            plan.decisions[name, ordinal] = Decision(
                read_tier(storage.get("tier", 0)),
                str(storage.get("device", "")),
                int(storage.get("preferred_offset", -1)),
                sizes.get((name, ordinal), -1),
            )
        if plan.policies[name] == RECOMPUTE:
            _read_rerun(plan, name, others_read)
    return plan


def _read_rerun(plan: Plan, name: str, others_read: Set[tuple[str, int]]) -> None:
    """What others read of it waits from forward on, as inputs do; the rest is made again first."""
    for (block, ordinal), decision in list(plan.decisions.items()):
        key = block, ordinal
        if block == name and decision.tier != KEEP and key not in plan.inputs | others_read:
            plan.rerun.setdefault(name, {})[ordinal] = decision
            plan.decisions[key] = decision._replace(tier=KEEP, device="", preferred_offset=-1)


def _read_selected(plan: Plan, profile: Profile, name: str, selected: Any) -> None:
    """Ranks run one plan, made of one rank's measurements: an operator that was not found worth
    saving here, or not fit for it, runs again here instead."""
    profiled = {storage.ordinal: storage for storage in profile.block(name).selective}
    tolerance = 1.0 if profile.exact else SCALED_TOLERANCE
    choices = plan.selected[name] = {}
    for decision in selected:
        storage = profiled.get(int(decision.get("ordinal", 0)))
        if storage is None:
            continue
        choices[storage.ordinal] = Choice(
            storage.ordinal,
            storage.op,
            int(storage.nbytes * tolerance),
            read_tier(decision.get("tier", 0)),
            str(decision.get("device", "")),
            int(decision.get("preferred_offset", -1)),
            storage.random,
            storage.kept_bytes,
        )
        if storage.is_saved:
            plan.saved_again[name] = plan.saved_again.get(name, 0) + storage.nbytes


def pin_blocks(
    raw: dict[str, Any], profile: Profile, rank: int, pins: Mapping[str, str]
) -> dict[str, Any]:
    """Sends every movable storage of the pinned blocks to their GPUs, and enlarges the leases."""
    if not pins:
        return raw
    mine = next(part for part in raw["ranks"] if int(part.get("rank", 0)) == rank)
    known = {block["name"]: block for block in mine["blocks"]}
    for name, gpu in pins.items():
        if name not in known:
            some = ", ".join(list(known)[:6])
            raise InvalidArgument(f"pin: there is no block {name!r} (there are {some}, ...).")
        block = known[name]
        profiled = profile.block(name)
        movable = {s.ordinal: s.nbytes for s in profiled.storages if not s.unmovable_reason}
        block["policy"] = SAVE
        block.pop("selected", None)
        block["reason"] = f"pinned to {gpu}"
        moved = 0
        for storage in block.get("storages", ()):
            ordinal = int(storage.get("ordinal", 0))
            if ordinal in movable and storage.get("device") != gpu:
                storage.update(tier="TIER_PEER", device=gpu, preferred_offset=-1)
                moved += -(-movable[ordinal] // 512) * 512
        leases = mine.setdefault("leases", [])
        lease = next((need for need in leases if need["device"] == gpu), None)
        if lease is None:
            leases.append({"device": gpu, "tier": "TIER_PEER", "bytes": moved})
        else:
            lease["bytes"] = int(lease["bytes"]) + moved
    return raw


def rank_problem(
    profile: Profile,
    *,
    rank: int,
    gpu: str,
    budget: int | None,
    activation_budget: int | None,
    gradients_absent: bool = False,
    keep_shared_from: int = 0,
    recompute: bool = True,
) -> dict[str, Any]:
    """RankProblem of the wire.

    Args:
        gradients_absent: the step begins without any gradient.
        keep_shared_from: as for as_planned().
        recompute: blocks may run again.
    """
    blocks = as_planned(profile, keep_from=keep_shared_from, recompute=recompute)
    problem: dict[str, Any] = {
        "rank": rank,
        "gpu": gpu,
        "resident_bytes": profile.resident_bytes,
        "blocks": [block.to_wire(gradients_absent=gradients_absent) for block in blocks],
    }
    for slowdown in profile.copy_slowdowns:
        problem[f"{slowdown.tier}_slowdown"] = slowdown.to_wire()
    if budget is not None:
        problem["budget"] = budget
    if activation_budget is not None:
        problem["activation_budget"] = activation_budget
    return problem
