"""Why HyperFrames is slow, saves nothing or stalls: figures in, findings out. Pure.

A cause is named when it explains at least a quarter of what was lost; several may be.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence

from . import _native
from ._figures import Figures, Finding, FrameFigures, LinkFigures, Stuck

HALVED = 2.0  # Steps that take at least so much longer are diagnosed.
SHARE = 0.25  # Of the lost time or memory: from here on a cause is named.
DEGRADED = 2.0  # A link is degraded when its copies take at least so much longer than reckoned.
LOWER = 0.9  # Memory counts as lower below this part of the baseline's.
SMALL_COPY = 1 << 20  # Bytes.
STALL = 1.5  # A step stalls when it takes so much longer than the median.
_LISTED = 5


def diagnose(figures: Figures) -> list[Finding]:
    """Findings in the order: speed, memory, stalls. Empty: nothing is wrong by these figures."""
    return [*speed(figures), *memory(figures), *stalls(figures)]


def speed(figures: Figures) -> list[Finding]:
    """Causes of a step that takes at least twice as long as the baseline's."""
    if not figures.steps or not figures.baseline_steps:
        return []
    base, now = statistics.median(figures.baseline_steps), statistics.median(figures.steps)
    if now < HALVED * base:
        return []
    lost = now - base
    head = f"a step takes {_ms(now)} instead of {_ms(base)} ({figures.baseline}): {_ms(lost)} lost"
    found: list[Finding] = []
    if figures.exposed_s >= SHARE * lost:
        found += _waits(figures, base)
    found += _recomputation(figures, lost)
    if not found:
        found += _overhead(figures, lost)
    # Said once: all causes are of the same loss.
    first = found[0]
    found[0] = dataclasses.replace(first, evidence=(head, *first.evidence))
    return found


def _waits(figures: Figures, base: float) -> list[Finding]:
    waited = f"{_ms(figures.exposed_s)} per step waited for copies"
    found: list[Finding] = []
    for link in _worst_lanes(figures.links):
        if link.busy_s >= SHARE * figures.exposed_s:
            cause = _link_cause(link, base)
            if cause is not None:
                what, word, evidence, remedy = cause
                shown = evidence if found else (waited, *evidence)
                found.append(Finding("speed", word, what, shown, remedy))
    if found:
        return found
    total = figures.prefetch_hits + figures.prefetch_misses
    late = figures.prefetch_misses * 2 >= total > 0
    worst = max(figures.frames, key=lambda frame: sum(frame.waits), default=None)
    lines = [waited]
    if total:
        lines.append(
            f"{figures.prefetch_misses:.0f} of {total:.0f} reloads per step were started only by "
            "their consumer"
        )
    if worst is not None:
        lines.append(f"longest: {worst}, {_ms(statistics.mean(worst.waits))} per step")
    if late:
        what = "reloads start too late: the order of consumption is not foreseen"
        remedy = (
            "keep shapes and the order of blocks the same from step to step, or raise the budget, "
            "which leaves room for reloads ahead."
        )
        return [Finding("speed", "late-prefetch", what, tuple(lines), remedy)]
    what = "copies do not hide behind the computation between two frames"
    remedy = "raise the budget, so that the frames that are consumed first stay where they are."
    return [Finding("speed", "exposed-copies", what, tuple(lines), remedy)]


def _worst_lanes(links: Iterable[LinkFigures]) -> list[LinkFigures]:
    """Of each tier the direction that is busy longest, the busiest tier first."""
    worst: dict[str, LinkFigures] = {}
    for link in links:
        if link.copies and (link.tier not in worst or link.busy_s > worst[link.tier].busy_s):
            worst[link.tier] = link
    return sorted(worst.values(), key=lambda link: -link.busy_s)


def _link_cause(link: LinkFigures, base: float) -> tuple[str, str, tuple[str, ...], str] | None:
    """What, word, evidence and remedy; None: the link does what it should."""
    way = "to it" if link.direction == "out" else "back"
    rate = f"{_rate(link.measured_bytes_per_s)} measured"
    if link.promised_bytes_per_s > 0:
        rate += f", {_rate(link.promised_bytes_per_s)} promised to the plan"
    moved = (
        f"{_native.format_bytes(round(link.nbytes))} {way} per step in {link.copies:.0f} copies of "
        f"{_native.format_bytes(round(link.nbytes / link.copies))}, busy for {_ms(link.busy_s)}"
    )
    evidence = (rate, moved)
    latency = link.copies * link.latency_s
    if link.expected_s > 0 and latency * 2 >= max(link.busy_s, link.expected_s):
        return (
            f"frames on the {link} are too small for its latency of {_ms(link.latency_s)} a copy",
            "tiny-frames",
            (*evidence, f"latency alone is {_ms(latency)} per step"),
            "make blocks coarser with blocks=[...], batch more per step, or forbid this tier.",
        )
    if link.expected_s > 0 and link.busy_s >= DEGRADED * link.expected_s:
        small = link.nbytes / link.copies < SMALL_COPY
        reckoned = f"the plan reckoned with {_ms(link.expected_s)}"
        if small:  # Speed and latency cannot be told apart by copies of one size.
            reckoned += f"; each copy takes {_ms(link.busy_s / link.copies)}, small as it is"
        return (
            f"the {link} is slower than the plan was promised",
            "degraded-link",
            (*evidence, reckoned),
            "look for other traffic on it (hfctl doctor), "
            + ("make frames larger with blocks=[...], " if small else "")
            + f"or leave it out: {_leave(link.tier)}.",
        )
    if link.busy_s * 2 >= base:
        return (
            f"the {link} is too slow for what is moved over it",
            "slow-link",
            (*evidence, f"a step computes for {_ms(base)}: only that long can copies hide"),
            f"raise the budget, allow recomputation, or leave the link out: {_leave(link.tier)}.",
        )
    return None


def _leave(tier: str) -> str:
    return f"forbid=[{tier!r}]"


def _recomputation(figures: Figures, lost: float) -> list[Finding]:
    total = sum(figures.recompute_s.values())
    if total < SHARE * lost:
        return []
    ordered = sorted(figures.recompute_s.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name} {_ms(seconds)}" for name, seconds in ordered[:_LISTED])
    evidence = (f"{_ms(total)} per step recomputed, most in: {listed}",)
    what = f"recomputation dominates, in {ordered[0][0]} most"
    remedy = (
        "raise the budget, or lend memory to move frames instead (another GPU, host_budget=); "
        "forbid=['recompute'] shows whether moving alone fits."
    )
    return [Finding("speed", "recompute", what, evidence, remedy)]


def _overhead(figures: Figures, lost: float) -> list[Finding]:
    copies = sum(link.copies for link in figures.links)
    evidence = [
        f"only {_ms(figures.exposed_s)} of it waited for copies and "
        f"{_ms(sum(figures.recompute_s.values()))} recomputed",
        f"{copies:.0f} copies per step",
    ]
    nbytes = sum(link.nbytes for link in figures.links)
    if copies and lost / copies < 1e-3 and nbytes / copies < SMALL_COPY:
        what = f"{copies:.0f} small copies cost more to start than to make"
        remedy = (
            "make blocks coarser with blocks=[...], batch more per step, or raise the budget: a "
            "step this short has little to hide behind."
        )
        return [Finding("speed", "tiny-frames", what, tuple(evidence), remedy)]
    what = "the computation itself is slower, neither waits nor recomputation explain it"
    remedy = (
        "copies take memory bandwidth (on the host backend also cores) from the computation: "
        "compare with forbid=['host'] and with forbid=['peer'], and on a machine that is idle."
    )
    return [Finding("speed", "unexplained", what, tuple(evidence), remedy)]


def memory(figures: Figures) -> list[Finding]:
    """What was moved without being freed, and why the peak is not lower."""
    size = _native.format_bytes
    found: list[Finding] = []
    held = sum(stuck.nbytes for stuck in figures.held)
    if held:
        freed = max(0, figures.moved_bytes - held)
        what = (
            f"{size(figures.moved_bytes)} were to be freed, {size(freed)} really were: other "
            "references keep the rest alive"
        )
        remedy = "let go of them before backward (del, .detach().clone() of what is needed later)."
        found.append(Finding("memory", "held", what, _listing(figures.held), remedy))
    lower = figures.peak < LOWER * figures.baseline_peak
    over = figures.asked is not None and figures.peak > figures.asked
    if lower and not over:
        return found
    against = figures.asked if over and figures.asked is not None else figures.baseline_peak
    head = f"peak {size(figures.peak)}, " + (
        f"{size(against)} allowed" if over else f"{size(against)} with {figures.baseline}"
    )
    stuck = sum(item.nbytes for item in figures.unmovable)
    if stuck >= SHARE * figures.peak:
        evidence = (head, *_listing(figures.unmovable))
        what = f"{size(stuck)} of the peak cannot be moved"
        remedy = "see the reasons; what the caller holds can be freed by the caller only."
        found.append(Finding("memory", "unmovable", what, evidence, remedy))
    if figures.unplanned_bytes >= SHARE * figures.peak:
        what = f"{size(figures.unplanned_bytes)} per step are not in the plan: profiled otherwise"
        remedy = "profile with the loss_fn, dtype and train mode of the real loop."
        found.append(Finding("memory", "unplanned", what, (head,), remedy))
    if figures.overflowed:
        what = f"{figures.overflowed} storages did not fit their lease and went elsewhere"
        remedy = "a larger host_budget, or another lender; see hf.stats(model)['engine']."
        found.append(Finding("memory", "overflow", what, (head,), remedy))
    return found or _nothing_asked(figures, head)


def _nothing_asked(figures: Figures, head: str) -> list[Finding]:
    size = _native.format_bytes
    if figures.asked is None or figures.asked >= LOWER * figures.baseline_peak:
        asked = "no budget" if figures.asked is None else f"a budget of {size(figures.asked)}"
        what = f"{asked} asks for nothing less than the whole"
        remedy = f"activation_budget={size(figures.baseline_peak // 2)!r} would halve it."
        return [Finding("memory", "budget", what, (head,), remedy)]
    what = (
        "the peak is not where frames are: neither held, unmovable nor unplanned bytes explain it"
    )
    remedy = "look at the moment of the peak with hf.ActivationMeter(model, record=True)."
    return [Finding("memory", "unexplained", what, (head,), remedy)]


def _listing(items: Sequence[Stuck]) -> tuple[str, ...]:
    ordered = sorted(items, key=lambda item: -item.nbytes)
    lines = [
        f"{item}: {_native.format_bytes(item.nbytes)}, {item.reason}" for item in ordered[:_LISTED]
    ]
    if len(ordered) > _LISTED:
        rest = sum(item.nbytes for item in ordered[_LISTED:])
        lines.append(f"and {len(ordered) - _LISTED} more, {_native.format_bytes(rest)}")
    return tuple(lines)


def stalls(figures: Figures) -> list[Finding]:
    """Single steps that take much longer than the others: which frame, link and step."""
    slow = stalled_steps(figures.steps)
    if not slow:
        return []
    median = statistics.median(figures.steps)
    excess = statistics.mean(figures.steps[i] - median for i in slow)
    numbers = ", ".join(map(str, slow[:10]))
    every = period(slow)
    how = f"every {every} steps" if every else "now and then"
    head = f"step {numbers} of {len(figures.steps)}: {_ms(excess)} over the median {_ms(median)}"
    frame, longer = _culprit_frame(figures.frames, slow)
    if frame is not None and longer >= SHARE * excess:
        what = f"a step stalls {how} on the {frame} over the {frame.route}"
        evidence = (head, f"it waits {_ms(longer)} longer there than in the other steps")
        remedy = (
            "look at what else uses that link at those steps (hfctl top, another job's "
            "checkpoint), or leave it out with forbid=."
        )
        return [Finding("stalls", "frame", what, evidence, remedy)]
    if stalled_steps(figures.baseline_steps):
        return []  # The plain run stalls as well: not ours.
    waited = "no frame was waited for longer than in the other steps"
    what = f"a step stalls {how}, and not on a copy"
    remedy = "look outside: the data loader, garbage collection, another process on the machine."
    return [Finding("stalls", "outside", what, (head, waited), remedy)]


def stalled_steps(steps: Sequence[float]) -> list[int]:
    """Indices of steps over 1.5 medians; none where more than a third are (that is the speed)."""
    if len(steps) < 4:
        return []
    limit = STALL * statistics.median(steps)
    slow = [index for index, seconds in enumerate(steps) if seconds > limit]
    return slow if 3 * len(slow) <= len(steps) else []


def period(slow: Sequence[int]) -> int:
    """Steps between stalls where they come regularly (three at least); else 0."""
    gaps = [after - before for before, after in itertools.pairwise(slow)]
    if len(gaps) < 2 or max(gaps) - min(gaps) > 1:
        return 0
    return round(statistics.mean(gaps))


def _culprit_frame(
    frames: Iterable[FrameFigures], slow: Sequence[int]
) -> tuple[FrameFigures | None, float]:
    """The frame that waits longest beyond its usual, and by how many seconds."""
    worst: FrameFigures | None = None
    most = 0.0
    stalled = set(slow)
    for frame in frames:
        usual = [wait for i, wait in enumerate(frame.waits) if i not in stalled]
        then = [wait for i, wait in enumerate(frame.waits) if i in stalled]
        if usual and then:
            longer = statistics.mean(then) - statistics.median(usual)
            if longer > most:
                worst, most = frame, longer
    return worst, most


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _rate(bytes_per_s: float) -> str:
    return f"{_native.format_bytes(round(bytes_per_s))}/s"
