"""What a comparison measured, as plain values: the diagnosis is made from these alone.

Bytes and seconds; per step where the name does not say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LinkFigures:
    """One lane: copies of one tier in one direction."""

    tier: str  # "peer", "host".
    direction: str  # "out", "in".
    route: str  # "SIM-local-0 -> SIM-local-1".
    promised_bytes_per_s: float  # As the plan reckoned with it; 0: unknown.
    latency_s: float
    nbytes: float
    copies: float
    busy_s: float

    @property
    def measured_bytes_per_s(self) -> float:
        """Of the time in which the lane was copying; 0: it never was."""
        return self.nbytes / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def expected_s(self) -> float:
        """What the plan reckoned these copies would take; 0: unknown."""
        if self.promised_bytes_per_s <= 0:
            return 0.0
        return self.copies * self.latency_s + self.nbytes / self.promised_bytes_per_s

    def __str__(self) -> str:
        return f"{self.tier} link {self.route}"


@dataclass(frozen=True)
class FrameFigures:
    """One moved storage, and how long it was waited for in every timed step."""

    block: str
    ordinal: int
    nbytes: int
    direction: str  # The wait was for its copy "out" or for its reload ("in").
    route: str
    waits: tuple[float, ...]  # Seconds, by timed step.

    def __str__(self) -> str:
        way = "copy-out" if self.direction == "out" else "reload"
        return f"{way} of {self.block} storage {self.ordinal}"


@dataclass(frozen=True)
class Stuck:
    """Memory that does not get less, and why."""

    block: str
    ordinal: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    reason: str  # Who holds it, or why it cannot be moved.

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.block} storage {self.ordinal} ({self.dtype} {shape})"


@dataclass(frozen=True)
class Figures:
    """HyperFrames' run beside the run that it is measured against."""

    baseline: str  # "nothing", or "checkpoint" where nothing does not fit.
    baseline_steps: tuple[float, ...]  # Seconds of every timed step.
    steps: tuple[float, ...]
    baseline_peak: int
    peak: int
    asked: int | None = None  # The activation budget in force; None: none.
    activation_bytes: int = 0  # What all blocks leave, by the profile.
    predicted_peak: int = 0
    exposed_s: float = 0.0
    recompute_s: dict[str, float] = field(default_factory=dict)  # By block.
    prefetch_hits: float = 0.0
    prefetch_misses: float = 0.0
    links: tuple[LinkFigures, ...] = ()
    frames: tuple[FrameFigures, ...] = ()
    moved_bytes: int = 0
    held: tuple[Stuck, ...] = ()
    unmovable: tuple[Stuck, ...] = ()
    overflowed: int = 0
    unplanned_bytes: int = 0


@dataclass(frozen=True)
class Finding:
    """One cause: what it is, the figures that show it, what to do."""

    subject: str  # "speed", "memory", "stalls".
    cause: str  # A word for programs: "slow-link", "held", ...
    what: str
    evidence: tuple[str, ...]
    remedy: str

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.what}"]
        lines += [f"    {line}" for line in self.evidence]
        return "\n".join([*lines, f"    remedy: {self.remedy}"])
