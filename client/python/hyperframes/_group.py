"""What ranks of a group have to have in common: the policy of blocks that communicate.

A block that was recomputed on one rank and kept on another would issue its collectives twice here
and once there, and the group would hang. So those policies are agreed on once, with the first plan,
and every later plan of every rank keeps them: later plans are made by one rank alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .profile import Profile

SAVE, RECOMPUTE = "POLICY_SAVE", "POLICY_RECOMPUTE"
COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd")


def world_size() -> int:
    """Ranks of the default group; 1 without one."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1


def collectives_issued() -> int | None:
    """By this process so far, over all groups; None: a group does not count them. Messages from one
    rank to another (send, recv) are no collectives."""
    if world_size() == 1:
        return 0
    groups: Any = torch.distributed.distributed_c10d._world.pg_map
    try:
        counts = [int(group._get_sequence_number_for_group()) for group in groups]
        return sum(counts)
    except RuntimeError:
        return None


class CollectiveWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices collectives issued inside. Slows every operator: not for what is timed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen = self.seen or func.namespace in COLLECTIVE_NAMESPACES
        return func(*args, **(kwargs or {}))


Facts = dict[str, tuple[str, bool, bool]]  # Block: policy, recomputable, communicates.


def facts_of(profile: Profile, policies: Mapping[str, str]) -> Facts:
    """What the other ranks need to know about this rank's first plan."""
    return {
        block.name: (policies.get(block.name, SAVE), not block.keep_reason, block.collectives)
        for block in profile.blocks
    }


def agree(all_facts: list[Facts]) -> dict[str, str]:
    """The policy of every block that communicates on some rank; the same on all of them.

    RECOMPUTE where one rank needs it and all can, for it takes the least memory; else SAVE.
    """
    fixed: dict[str, str] = {}
    names = {name for facts in all_facts for name, (_, _, talks) in facts.items() if talks}
    for name in sorted(names):
        known = [facts[name] for facts in all_facts if name in facts]
        wanted = any(policy == RECOMPUTE for policy, _, _ in known)
        fixed[name] = RECOMPUTE if wanted and all(can for _, can, _ in known) else SAVE
    return fixed


def agree_with_group(profile: Profile, policies: Mapping[str, str]) -> dict[str, str]:
    """Collective: every rank calls it with its first plan."""
    if world_size() == 1:
        return {}
    gathered: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(gathered, facts_of(profile, policies))
    return agree(gathered)


def bind(problem: dict[str, Any], fixed: Mapping[str, str]) -> dict[str, Any]:
    """A RankProblem whose fixed blocks the planner can only plan as agreed."""
    if not fixed:
        return problem
    blocks = [
        _bound(block, fixed[block["name"]]) if block["name"] in fixed else block
        for block in problem["blocks"]
    ]
    return {**problem, "blocks": blocks}


def _bound(block: dict[str, Any], policy: str) -> dict[str, Any]:
    if policy == SAVE:
        return {**block, "not_recomputable": True}
    # As it behaves: only its inputs wait, and its backward runs the forward first, with all of it.
    inputs = [storage for storage in block["storages"] if storage["is_input"]]
    remade = sum(s["bytes"] for s in block["storages"] if not s["is_input"])
    return {
        **block,
        "storages": inputs,
        "not_recomputable": True,
        "backward_s": block["backward_s"] + block["forward_s"],
        "transient_bytes": max(block["transient_bytes"], remade),
    }


def unbind(raw: dict[str, Any], fixed: Mapping[str, str]) -> dict[str, Any]:
    """Writes the agreed policies into the answer to a bound problem."""
    for rank in raw["ranks"]:
        for block in rank.get("blocks", ()):
            policy = fixed.get(block["name"])
            if policy is not None:
                block["policy"] = policy
                block["reason"] = "it communicates: as agreed with the other ranks"
    return raw
