"""What a check shows: every run with its verdict, and the pair that does not go together."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._forced import HOST, OVERLAP, PEER, PREFETCH, RECOMPUTE, SELECTIVE

EQUAL, DIFFERENT, ERROR = "equal", "different", "error"
_LONGEST = 300


@dataclass(frozen=True)
class CheckRun:
    """One way of running the model.

    Attributes:
        name: what was on and what was off.
        verdict: "equal", "different", "error".
        detail: the first tensor that differs and by how much, or the error's message.
    """

    name: str
    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Culprit:
    """Two things that do not go together.

    Attributes:
        feature: of HyperFrames ("recompute", "peer offload", ...), or "plain run" where the model
            itself is to blame.
        part: of the model: a hook, a module, a kind of change.
        block: where.
        why: what was seen.
        remedy: what to do.
    """

    feature: str
    part: str
    block: str
    why: str
    remedy: str

    def __str__(self) -> str:
        where = "" if not self.block or self.block in self.part else f" (in {self.block})"
        why = self.why[:_LONGEST]
        return f"{self.feature} × {self.part}{where}\n    {why}\n    remedy: {self.remedy}"


@dataclass
class CheckReport:
    """What check() found. ``print`` it; ``sys.exit(not report.ok)``.

    Attributes:
        runs: in the order in which they were made.
        culprit: the smallest conflict; None where all runs are equal.
        warnings: what changes no result, but memory or luck.
        notes: blocks that are left alone, with the reason.
    """

    runs: list[CheckRun] = field(default_factory=list)
    culprit: Culprit | None = None
    warnings: list[Culprit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every run gave the plain run's losses and gradients, to the last bit."""
        return self.culprit is None and all(run.verdict == EQUAL for run in self.runs)

    def __str__(self) -> str:
        width = max((len(run.name) for run in self.runs), default=4)
        lines = [f"{'run':<{width}}  verdict"]
        for run in self.runs:
            detail = f": {run.detail[:_LONGEST]}" if run.detail else ""
            lines.append(f"{run.name:<{width}}  {run.verdict}{detail}")
        lines += self.notes
        for warning in self.warnings:
            lines += ["", f"Warning: {warning}"]
        lines.append("")
        if self.culprit is not None:
            lines.append(f"Conflict: {self.culprit}")
        else:
            lines.append("OK: losses and gradients are the plain run's, to the last bit.")
        return "\n".join(lines)


def remedy_for(few: list[str], part: object) -> str:
    """What to change, where these features conflict with the model (with that part of it)."""
    words = {PEER: "peer", HOST: "host", RECOMPUTE: "recompute", SELECTIVE: SELECTIVE}
    forbid = [words[f] for f in few if f in words and (f != RECOMPUTE or SELECTIVE not in few)]
    also = f"leave the feature out with forbid={forbid!r}" if forbid else "report this text"
    if part is not None:
        return f"make it do in backward what it did in forward, take it out, or {also}."
    if RECOMPUTE in few:
        return f"keep such state in the block's arguments or buffers, or {also}."
    if PREFETCH in few or OVERLAP in few:
        return "an error of HyperFrames rather than of the model: report it with this text."
    return f"change a clone of what was saved, or {also}."
