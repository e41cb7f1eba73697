"""One run of the example, over all its ranks, and the table that compares runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 2**20
# The reference that every other mode has to equal bit for bit.
REFERENCE = "nothing"


@dataclass
class RunSummary:
    """Bytes, seconds, tokens per second; one entry per rank in the lists."""

    mode: str
    activation_peaks: list[int]
    own_memory_peaks: list[int]
    peer_bytes: int
    host_bytes: int
    recomputed_bytes: int
    tokens_per_second: float
    exposed_wait_s: float
    final_loss: float
    # (loss as hexadecimal float, gradient digest) of every step, rank after rank.
    fingerprint: list[tuple[str, str]]
    losses: list[float]  # Of every step, rank 0.
    budget: int | None = None
    curve: list[tuple[float, int]] = field(default_factory=list)


def summarize(reports: Sequence[dict[str, Any]]) -> RunSummary:
    """The reports of all ranks of one run, in any order.

    Raises:
        ValueError: ranks are missing or come from different modes.
    """
    ordered = sorted(reports, key=lambda report: report["rank"])
    world = ordered[0]["world"]
    if [report["rank"] for report in ordered] != list(range(world)):
        found = [report["rank"] for report in ordered]
        raise ValueError(f"reports of ranks {found} do not make a world of {world}")
    if len({report["mode"] for report in ordered}) != 1:
        raise ValueError(f"reports of several modes: {sorted({r['mode'] for r in ordered})}")

    def total(name: str) -> int:
        return sum(int(report["frames"].get(name, 0)) for report in ordered)

    first = ordered[0]
    return RunSummary(
        mode=first["mode"],
        activation_peaks=[report["activation_peak"] for report in ordered],
        own_memory_peaks=[report["anonymous_peak"] for report in ordered],
        peer_bytes=total("peer_bytes"),
        host_bytes=total("host_bytes"),
        recomputed_bytes=total("recomputed_bytes"),
        tokens_per_second=min(report["tokens_per_second"] for report in ordered),
        exposed_wait_s=max(_exposed_wait_per_step(report["frames"]) for report in ordered),
        final_loss=sum(report["steps"][-1]["loss"] for report in ordered) / world,
        fingerprint=[
            (step["loss_hex"], step["gradients"]) for report in ordered for step in report["steps"]
        ],
        losses=[float.fromhex(step["loss_hex"]) for step in first["steps"]],
        budget=first["activation_budget_bytes"],
        curve=[(float(t), int(b)) for t, b in first["curve"]],
    )


def _exposed_wait_per_step(frames: dict[str, Any]) -> float:
    return float(frames.get("exposed_wait_s", 0.0)) / max(int(frames.get("steps", 1)), 1)


def load_run(pattern: Path, world: int) -> RunSummary:
    """Reads `pattern`, whose name contains {rank}, for every rank of `world`."""
    return summarize(
        [
            json.loads(Path(str(pattern).replace("{rank}", str(rank))).read_text())
            for rank in range(world)
        ]
    )


def equal_to_reference(run: RunSummary, runs: Sequence[RunSummary]) -> bool:
    """Whether every loss and every gradient of every step and rank equals the reference's."""
    reference = next(other for other in runs if other.mode == REFERENCE)
    return run.fingerprint == reference.fingerprint


HEADINGS = (
    "mode",
    "peak activations per rank (MiB)",
    "own memory peak per rank (MiB)",
    "on peers (MiB)",
    "on host (MiB)",
    "recomputed (MiB)",
    "tokens/s",
    "exposed wait (ms/step)",
    "final loss",
    "bit-equal",
)


def rows(runs: Sequence[RunSummary]) -> list[tuple[str, ...]]:
    """A row per run under HEADINGS. Bytes moved and recomputed are per step, over all ranks."""
    return [
        (
            run.mode,
            " / ".join(f"{peak / MIB:.1f}" for peak in run.activation_peaks),
            " / ".join(f"{peak / MIB:.0f}" for peak in run.own_memory_peaks),
            f"{run.peer_bytes / MIB:.1f}",
            f"{run.host_bytes / MIB:.1f}",
            f"{run.recomputed_bytes / MIB:.1f}",
            f"{run.tokens_per_second:.0f}",
            f"{run.exposed_wait_s * 1e3:.1f}",
            f"{run.final_loss:.6f}",
            "reference"
            if run.mode == REFERENCE
            else ("yes" if equal_to_reference(run, runs) else "NO"),
        )
        for run in runs
    ]


def table_text(runs: Sequence[RunSummary]) -> str:
    """The table for a terminal: one line per quantity, one column per run, so that it fits."""
    columns = [HEADINGS, *rows(runs)]
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = []
    for index in range(len(HEADINGS)):
        cells = [columns[0][index].ljust(widths[0])]
        cells += [
            column[index].rjust(width)
            for column, width in zip(columns[1:], widths[1:], strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
        if index == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)
