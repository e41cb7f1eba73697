"""What a comparison shows: a row per mode in one table, then the diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import _native
from ._figures import Finding

_LONGEST_MESSAGE = 400


@dataclass
class Row:
    """One mode. Bytes and seconds per step.

    Attributes:
        verdict: "reference", "bit-equal", "out of memory", "does not fit".
        peak_bytes: most activation bytes alive at once, by :class:`ActivationMeter`.
        step_s: median of the timed steps.
        per_second: tokens, or samples where no tokens are known; see Comparison.unit.
        jitter: 95th percentile of the timed steps over their median.
        exposed_wait_s: the computation stood still for copies.
        moved_bytes: by tier, "peer" and "host", counted once (on the way out).
        recomputed_bytes: made again in backward.
    """

    mode: str
    verdict: str
    message: str = ""
    peak_bytes: int = 0
    step_s: float = 0.0
    per_second: float = 0.0
    jitter: float = 0.0
    exposed_wait_s: float = 0.0
    moved_bytes: dict[str, int] = field(default_factory=dict)
    recomputed_bytes: int = 0
    steps_s: list[float] = field(default_factory=list)


@dataclass
class Comparison:
    """What compare() found. ``print`` it: one table, then the diagnosis."""

    rows: list[Row]
    findings: list[Finding]
    unit: str  # "tokens" or "samples".
    timed_steps: int
    notes: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row:
        """KeyError: a mode that was not compared."""
        for row in self.rows:
            if row.mode == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        return "\n".join([*_table(self), "", *_diagnosis(self)])


def _table(comparison: Comparison) -> list[str]:
    size = _native.format_bytes
    head = (
        f"{'mode':<12} {'peak':>11} {'step':>10} {comparison.unit + '/s':>10} {'jitter':>7}"
        f" {'exposed':>9} {'to peer':>11} {'to host':>11} {'recomputed':>11}  result"
    )
    lines = [head]
    for row in comparison.rows:
        if not row.step_s:
            lines.append(f"{row.mode:<12} {row.verdict}")
            continue
        lines.append(
            f"{row.mode:<12} {size(row.peak_bytes):>11} {row.step_s * 1e3:>7.1f} ms"
            f" {row.per_second:>10.0f} {row.jitter:>7.2f} {row.exposed_wait_s * 1e3:>6.1f} ms"
            f" {size(row.moved_bytes.get('peer', 0)):>11}"
            f" {size(row.moved_bytes.get('host', 0)):>11} {size(row.recomputed_bytes):>11}"
            f"  {row.verdict}"
        )
    lines.append(
        f"peak: activation bytes alive at once. step: median of {comparison.timed_steps}; jitter: "
        "95th percentile / median. exposed, moved, recomputed: per step."
    )
    failed = [
        f"{row.mode}, {row.verdict}: {row.message[:_LONGEST_MESSAGE]}"
        for row in comparison.rows
        if row.message
    ]
    return [*lines, *failed, *comparison.notes]


def _diagnosis(comparison: Comparison) -> list[str]:
    if not all(row.step_s for row in comparison.rows):
        incomplete = "Diagnosis: only of modes that ran."
        if not comparison.findings:
            return [incomplete]
    if not comparison.findings:
        return ["Diagnosis: nothing stands out: speed, memory and steps are as planned."]
    lines = ["Diagnosis:"]
    for number, finding in enumerate(comparison.findings, 1):
        lines += [f"{number}. {finding}"]
    return lines


def percentile(values: Sequence[float], part: float) -> float:
    """By nearest rank: the smallest value that at least ``part`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
