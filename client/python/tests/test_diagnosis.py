"""Figures in, findings out: each cause is named by the figures that show it, and by no others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hyperframes._comparison import Comparison, Row, percentile
from hyperframes._diagnosis import diagnose, period, stalled_steps
from hyperframes._figures import Figures, FrameFigures, LinkFigures, Stuck

MIB = 1 << 20
GB = 10**9

HEALTHY = Figures(
    baseline="nothing",
    baseline_steps=(0.1,) * 10,
    steps=(0.11,) * 10,
    baseline_peak=100 * MIB,
    peak=50 * MIB,
    asked=55 * MIB,
    activation_bytes=100 * MIB,
    moved_bytes=50 * MIB,
)
SLOW = dataclasses.replace(HEALTHY, steps=(0.3,) * 10, exposed_s=0.18)


def link(**changes: Any) -> LinkFigures:
    values: dict[str, Any] = {
        "tier": "peer", "direction": "in", "route": "B -> A", "promised_bytes_per_s": 1e9,
        "latency_s": 1e-5, "nbytes": 50.0 * MIB, "copies": 10.0, "busy_s": 0.0525,
    }  # fmt: skip
    return LinkFigures(**{**values, **changes})


def causes(figures: Figures) -> list[str]:
    return [finding.cause for finding in diagnose(figures)]


def test_a_run_as_planned_has_no_finding_and_the_comparison_says_so() -> None:
    assert diagnose(HEALTHY) == []
    row = Row("nothing", "reference", step_s=0.1)
    assert "nothing stands out" in str(Comparison([row], [], "tokens", 10))


def test_a_link_at_a_tenth_of_its_promise_is_named_with_both_figures() -> None:
    figures = dataclasses.replace(SLOW, links=(link(busy_s=0.5),))
    (finding,) = diagnose(figures)
    assert finding.cause == "degraded-link"
    assert "peer link B -> A" in finding.what
    text = str(finding)
    assert "100MiB/s measured, 953.67MiB/s promised" in text
    assert "reckoned with 52.5 ms" in text
    assert "forbid=['peer']" in finding.remedy


def test_a_link_that_keeps_its_promise_but_cannot_hide_is_too_slow() -> None:
    figures = dataclasses.replace(
        SLOW, links=(link(promised_bytes_per_s=50 * MIB / 0.25, busy_s=0.26),)
    )
    (finding,) = diagnose(figures)
    assert finding.cause == "slow-link"
    assert "computes for 100.0 ms" in str(finding)


def test_copies_that_are_mostly_latency_are_too_small() -> None:
    tiny = link(nbytes=1.0 * MIB, copies=256.0, latency_s=1e-3, busy_s=0.26)
    (finding,) = diagnose(dataclasses.replace(SLOW, links=(tiny,)))
    assert finding.cause == "tiny-frames"
    assert "copies of 4KiB" in str(finding)
    assert "latency alone is 256.0 ms" in str(finding)


def test_many_cheap_copies_without_a_wait_are_too_small_too() -> None:
    figures = dataclasses.replace(
        SLOW, exposed_s=0.001, links=(link(copies=1000.0, nbytes=1.0 * MIB, busy_s=0.01),)
    )
    assert causes(figures) == ["tiny-frames"]


def test_of_two_lanes_of_one_link_only_the_busier_is_named() -> None:
    lanes = link(busy_s=0.5), link(direction="out", route="A -> B", busy_s=0.4)
    (finding,) = diagnose(dataclasses.replace(SLOW, links=lanes))
    assert "B -> A" in finding.what


def test_a_link_that_is_hardly_busy_is_not_blamed() -> None:
    figures = dataclasses.replace(
        SLOW, links=(link(busy_s=0.5), link(tier="host", route="H -> A", busy_s=0.01))
    )
    assert [f.what for f in diagnose(figures)] == ["the peer link B -> A is slower than the plan "
                                                   "was promised"]  # fmt: skip


def test_reloads_that_their_consumers_start_are_late() -> None:
    frame = FrameFigures("layers.3", 2, MIB, "in", "peer link B -> A", (0.01,) * 10)
    figures = dataclasses.replace(
        SLOW, links=(link(busy_s=0.045, nbytes=45.0 * MIB),), prefetch_hits=2, prefetch_misses=8,
        frames=(frame,),
    )  # fmt: skip
    (finding,) = diagnose(figures)
    assert finding.cause == "late-prefetch"
    assert "8 of 10 reloads" in str(finding)
    assert "reload of layers.3 storage 2, 10.0 ms" in str(finding)


def test_waits_behind_prefetches_in_time_are_said_to_be_exposed() -> None:
    assert causes(dataclasses.replace(SLOW, prefetch_hits=9, prefetch_misses=1)) == [
        "exposed-copies"
    ]


def test_the_block_whose_recomputation_dominates_is_named() -> None:
    figures = dataclasses.replace(
        SLOW, exposed_s=0.0, recompute_s={"layers.0": 0.02, "layers.1": 0.15}
    )
    (finding,) = diagnose(figures)
    assert finding.cause == "recompute"
    assert "layers.1 most" in finding.what
    assert "layers.1 150.0 ms, layers.0 20.0 ms" in str(finding)


def test_two_causes_are_two_findings_and_the_loss_is_said_once() -> None:
    figures = dataclasses.replace(SLOW, links=(link(busy_s=0.5),), recompute_s={"layers.0": 0.1})
    found = diagnose(figures)
    assert [f.cause for f in found] == ["degraded-link", "recompute"]
    assert "\n".join(map(str, found)).count("instead of 100.0 ms") == 1


def test_what_no_figure_explains_is_not_explained() -> None:
    assert causes(dataclasses.replace(SLOW, exposed_s=0.0)) == ["unexplained"]


@pytest.mark.parametrize("step_s", [0.11, 0.199])
def test_less_than_half_the_speed_lost_is_no_finding(step_s: float) -> None:
    assert causes(dataclasses.replace(SLOW, steps=(step_s,) * 10, links=(link(busy_s=9),))) == []


def test_t18_bytes_really_freed_are_reported_with_tensor_and_holder_though_the_peak_fell() -> None:
    held = Stuck("layers.1", 4, (2, 64, 256), "float32", 20 * MIB, "held by attribute 'kept' of X")
    (finding,) = diagnose(dataclasses.replace(HEALTHY, held=(held,)))
    assert finding.cause == "held"
    assert finding.what.startswith("50MiB were to be freed, 30MiB really were")
    assert finding.evidence == (
        "layers.1 storage 4 (float32 2x64x256): 20MiB, held by attribute 'kept' of X",
    )


def test_a_long_list_of_holders_is_cut_and_summed() -> None:
    held = tuple(Stuck("b", i, (1,), "float32", MIB, "held") for i in range(8))
    (finding,) = diagnose(dataclasses.replace(HEALTHY, held=held))
    assert len(finding.evidence) == 6
    assert finding.evidence[-1] == "and 3 more, 3MiB"


def test_memory_that_is_not_lower_names_what_cannot_be_moved() -> None:
    fixed = Stuck("layers.0", 0, (2, 8), "float32", 60 * MIB, "the batch itself: the caller holds")
    figures = dataclasses.replace(HEALTHY, peak=95 * MIB, asked=None, unmovable=(fixed,))
    (finding,) = diagnose(figures)
    assert finding.cause == "unmovable"
    assert "the batch itself" in str(finding)


def test_memory_that_is_not_lower_because_nothing_less_was_asked() -> None:
    figures = dataclasses.replace(HEALTHY, peak=100 * MIB, asked=98 * MIB)
    assert causes(figures) == ["budget"]
    assert "'50MiB' would halve it" in diagnose(figures)[0].remedy


def test_memory_that_is_not_lower_because_the_plan_met_other_storages() -> None:
    figures = dataclasses.replace(
        HEALTHY, peak=99 * MIB, unplanned_bytes=40 * MIB, overflowed=3, asked=50 * MIB
    )
    assert causes(figures) == ["unplanned", "overflow"]


def test_memory_that_nothing_explains_is_said_to_be_unexplained() -> None:
    assert causes(dataclasses.replace(HEALTHY, peak=99 * MIB)) == ["unexplained"]


def stalling(*frames: FrameFigures) -> Figures:
    steps = tuple(0.3 if i % 4 == 1 else 0.11 for i in range(12))
    return dataclasses.replace(HEALTHY, steps=steps, frames=frames)


def test_a_periodic_stall_names_frame_link_and_steps() -> None:
    waits = tuple(0.19 if i % 4 == 1 else 0.001 for i in range(12))
    usual = FrameFigures("layers.0", 1, MIB, "in", "host link H -> A", (0.002,) * 12)
    late = FrameFigures("layers.2", 5, MIB, "out", "peer link A -> B", waits)
    (finding,) = diagnose(stalling(usual, late))
    assert finding.cause == "frame"
    assert finding.what == (
        "a step stalls every 4 steps on the copy-out of layers.2 storage 5 over the peer link "
        "A -> B"
    )
    assert "step 1, 5, 9 of 12" in str(finding)


def test_a_stall_that_no_frame_waits_for_is_outside() -> None:
    usual = FrameFigures("layers.0", 1, MIB, "in", "host link H -> A", (0.002,) * 12)
    assert [f.cause for f in diagnose(stalling(usual))] == ["outside"]


def test_a_stall_that_the_plain_run_has_as_well_is_not_ours() -> None:
    figures = stalling()
    assert diagnose(dataclasses.replace(figures, baseline_steps=figures.steps)) == []


def test_stalls_are_single_steps() -> None:
    assert stalled_steps([1, 1, 5, 1, 1, 1, 1]) == [2]
    assert stalled_steps([5, 5, 5, 1, 1, 1]) == []  # Half of them: that is the speed.
    assert stalled_steps([1, 9, 1]) == []  # Too few to tell.


def test_a_period_takes_three_stalls_at_equal_distances() -> None:
    assert period([1, 5, 9]) == 4
    assert period([1, 5, 10]) == 4
    assert period([1, 5]) == 0
    assert period([1, 2, 9]) == 0


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(i) for i in range(1, 21)]
    assert percentile(values, 0.95) == 19
    assert percentile(values, 1.0) == 20
    assert percentile([3.0], 0.95) == 3
