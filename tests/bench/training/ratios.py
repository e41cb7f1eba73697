"""The ratio names that docs/benchmarks shares between models."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]
SUFFIXES = ("", "_compiled", "_budget_75_compiled")


def look(row: dict[str, Any] | None, *path: str) -> float | None:
    """A number inside a row; None where there is none."""
    found: Any = row
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return float(found) if isinstance(found, (int, float)) else None


def mode_ratios(rows: Rows) -> dict[str, float]:
    """``peer_L_...``, ``host_L_...`` and the like from the rows of the part ``modes``; of compiled
    modes against compiled references. Where nothing does not fit there is no throughput against
    it; the one against checkpointing is always there."""
    found: dict[str, float | None] = {}
    by = {(r["length"], r["mode"]): r for r in rows if r["part"] == "modes"}
    for word, length in ((f"{k}k", k * 1024) for k in (8, 16, 32, 64, 128)):
        for mode in (f"{base}{suffix}" for base in ("peer", "host", "auto") for suffix in SUFFIXES):
            row = by.get((length, mode))
            suffix = "_compiled" if mode.endswith("_compiled") else ""
            for other in ("nothing", "checkpoint"):
                name = f"{mode}_{word}_throughput_vs_{other}"
                found[name] = look(row, "throughput_vs", other + suffix)
            name = f"{mode}_{word}_peak_vs_checkpoint"
            found[name] = look(row, "peak_vs", "checkpoint" + suffix)
            if mode == "peer":
                found[f"peer_{word}_throughput_vs_ceiling"] = look(row, "throughput_vs_ceiling")
    return {name: value for name, value in found.items() if value is not None}
