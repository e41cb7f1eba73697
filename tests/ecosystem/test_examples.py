"""The examples of the ecosystem, run as users would: the same bits with HyperFrames and without."""

from __future__ import annotations

from pathlib import Path

from ecosystem.example_runs import (
    assert_frames_moved_and_recomputed,
    assert_same_training,
    run_example,
)


def test_transformers_trainer_trains_the_same_with_a_context_around_it(tmp_path: Path) -> None:
    off = run_example("trainer_llama.py", tmp_path, mode="off")
    on = run_example("trainer_llama.py", tmp_path, "--activation-budget", "1.68MiB")
    assert_same_training(off, on)
    assert_frames_moved_and_recomputed(on)
    # Two micro-batches for each of four steps; evaluation is not counted.
    assert on.frames["forwards"] == 8
