"""What a session tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._config import Limits
from .plan import Plan


def summarize(
    limits: Limits,
    plan: Plan | None,
    counts: Mapping[str, int],
    *,
    activation_peak: int,
    recompute_ns: int,
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
        "overflowed_storages": int(engine.get("overflow_to_host", 0))
        + int(engine.get("overflow_to_keep", 0)),
        "exposed_wait_s": float(engine.get("exposed_wait", 0.0)),
        "recompute_s": recompute_ns / 1e9,
        "held_elsewhere_bytes": sum(held.values()),
        "held_elsewhere": held,
        "engine": dict(engine),
        **counts,
    }
