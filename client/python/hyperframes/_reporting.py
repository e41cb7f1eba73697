"""What a session tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _native
from ._config import Limits
from ._preflight import verdict
from .plan import Plan


def summarize(
    limits: Limits,
    plan: Plan | None,
    counts: Mapping[str, int],
    *,
    activation_peak: int,
    recompute_ns: Mapping[str, int],
    held: dict[str, int],
    engine: Mapping[str, Any],
) -> dict[str, Any]:
    """Bytes, seconds and counts; Session.stats() says what each means."""
    steps = max(counts["steps"], 1)
    out = engine.get("bytes_out", {})
    rank = plan.rank if plan is not None else {}
    return {
        "mode": "on",
        "budget": limits.budget,
        "activation_budget": limits.activation_budget,
        "activation_peak": activation_peak,
        "predicted_activation_peak": int(rank.get("predicted_activation_peak", 0)),
        "peer_bytes": int(out.get("peer", 0)) // steps,
        "host_bytes": int(out.get("host", 0)) // steps,
        "recomputed_bytes": int(rank.get("recomputed_bytes", 0)),
        "leases": [
            {
                "device": str(need["device"]),
                "node": str(need.get("node", "")),
                "bytes": int(need["bytes"]),
                "staging_bytes": int(need.get("staging_bytes", 0)),
            }
            for need in rank.get("leases", ())
        ],
        "overflowed_storages": int(engine.get("overflow_to_host", 0))
        + int(engine.get("overflow_to_keep", 0)),
        "exposed_wait_s": float(engine.get("exposed_wait", 0.0)),
        "recompute_s": sum(recompute_ns.values()) / 1e9,
        "recompute_s_by_block": {name: ns / 1e9 for name, ns in recompute_ns.items()},
        "held_elsewhere_bytes": sum(held.values()),
        "held_elsewhere": held,
        "copy_slowdown": {s.tier: s.to_wire() for s in plan.copy_slowdowns} if plan else {},
        "collectives": verdict(),
        "engine": dict(engine),
        **counts,
        "rerun_moved_bytes": counts.get("rerun_moved_bytes", 0) // steps,
    }


def recommendation(
    plan: Plan,
    *,
    budget: int | None,
    unlimited_step_s: float,
    allowed: float,
    bound_by: str,
) -> str:
    """One screen: the budget that was chosen, why, and what the plan does with it.

    Args:
        budget: the recommended activation budget; None: none smaller than everything.
        unlimited_step_s: predicted without a budget; 0: unknown.
        allowed: how much longer a step may get, as a factor.
        bound_by: the GPU whose free memory binds, where a coordinator planned.
    """
    size = _native.format_bytes
    percent = f"{allowed - 1:.0%}"
    needed = max(plan.activation_bytes, plan.predicted_activation_peak)
    if bound_by:
        chosen = f"none: what is free on {bound_by} binds"
        why = "the coordinator plans with the memory that the cluster really has"
    elif budget is None:
        chosen = f"none: all {size(needed)} of activations"
        why = f"every smaller budget makes the predicted step more than {percent} longer"
    else:
        chosen = f"{size(budget)}, of {size(needed)} without HyperFrames"
        why = f"the smallest tried whose predicted step is at most {percent} longer"
    step = f"{plan.predicted_step_s * 1e3:.1f} ms"
    if unlimited_step_s > 0:
        step += f", {plan.predicted_step_s / unlimited_step_s - 1:+.1%}"
    rank = plan.rank
    rows = [
        ("activation_budget", chosen),
        ("why", why),
        ("stays here", size(int(rank.get("keep_bytes", 0)))),
        ("to peer GPUs", size(int(rank.get("peer_bytes", 0)))),
        ("to host memory", size(int(rank.get("host_bytes", 0)))),
        ("recomputed", size(int(rank.get("recomputed_bytes", 0)))),
        (
            "predicted peak",
            f"{size(plan.predicted_activation_peak)} of activations, "
            f"{size(plan.predicted_peak)} with weights and optimizer",
        ),
        ("predicted step", step),
    ]
    lines = ["HyperFrames: no budget was given; this one is used:"]
    lines += [f"  {name:<18} {value}" for name, value in rows]
    lines.append('  To choose another: hf.hyperframes(..., activation_budget="2GiB").')
    return "\n".join(lines)
