"""The examples of the ecosystem, run as users would: the same bits with HyperFrames and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecosystem.example_runs import (
    assert_frames_fit,
    assert_frames_moved_and_recomputed,
    assert_same_training,
    run_example,
)

# What `accelerate launch --cpu` sets: data parallel over gloo.
ON_CPU = {"ACCELERATE_USE_CPU": "true"}


def test_transformers_trainer_trains_the_same_with_a_context_around_it(tmp_path: Path) -> None:
    off = run_example("trainer_llama.py", tmp_path, mode="off")
    # What may be lent is less than what has to go: something runs again.
    on = run_example(
        "trainer_llama.py", tmp_path, "--activation-budget", "2MiB",
        HYPERFRAMES_HOST_DEVICES="256MiB,1MiB", HYPERFRAMES_HOST_BYTES="1MiB",
    )  # fmt: skip
    assert_same_training(off, on)
    assert_frames_moved_and_recomputed(on)
    # Two micro-batches for each of four steps; evaluation is not counted.
    assert on[0].frames["forwards"] == 8


@pytest.mark.parametrize("name", ["accelerate_gpt.py", "lightning_gpt.py"])
def test_accelerate_and_lightning_train_the_same_with_a_context(name: str, tmp_path: Path) -> None:
    off = run_example(name, tmp_path, mode="off")
    on = run_example(name, tmp_path, "--activation-budget", "1.29MiB")
    assert_same_training(off, on)
    assert_frames_moved_and_recomputed(on)
    assert on[0].frames["forwards"] == 8


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_in_mixed_precision_trains_the_same(ranks: int, tmp_path: Path) -> None:
    flags = ("--mixed-precision", "bf16")
    off = run_example("accelerate_gpt.py", tmp_path, *flags, mode="off", ranks=ranks, **ON_CPU)
    on = run_example(
        "accelerate_gpt.py",
        tmp_path,
        *flags,
        "--activation-budget",
        "1.5MiB",
        ranks=ranks,
        **ON_CPU,
    )
    assert_same_training(off, on)
    for outcome in on:
        assert outcome.moved_bytes + outcome.frames["recomputed_bytes"] > 0
        assert_frames_fit(outcome)


def test_fsdp2_trains_the_same_on_two_ranks(tmp_path: Path) -> None:
    off = run_example("fsdp2_gpt.py", tmp_path, mode="off", ranks=2)
    on = run_example("fsdp2_gpt.py", tmp_path, "--activation-budget", "1.29MiB", ranks=2)
    assert off[0].parameters == off[1].parameters
    assert off[0].losses != off[1].losses, "both ranks saw the same data"
    assert_same_training(off, on)
    assert_frames_moved_and_recomputed(on)


def test_compiled_blocks_under_fsdp2_train_the_same_on_two_ranks(tmp_path: Path) -> None:
    """Compiled by inductor, C++ and all; kept apart from what other runs have compiled."""
    cache = str(tmp_path / "inductor")
    runs = {
        mode: run_example(
            "fsdp2_gpt.py", tmp_path, "--compile", "--activation-budget", "4MiB",
            mode=mode, ranks=2, TORCHINDUCTOR_CACHE_DIR=cache, TORCHINDUCTOR_COMPILE_THREADS="1",
        )
        for mode in ("off", "on")
    }  # fmt: skip
    assert_same_training(runs["off"], runs["on"])
    for off, on in zip(runs["off"], runs["on"], strict=True):
        assert on.moved_bytes > 0
        assert_frames_fit(on)
        # The graphs are those of the run without, and there are no more of them at the end.
        graphs = on.frames["compiled_graphs"]
        assert graphs == off.frames["compiled_graphs"] == graphs[:1] * len(graphs)
        assert graphs[0] > 0
    # Compiled code draws its dropout in an order of its own: it is what has run.
    eager = run_example("fsdp2_gpt.py", tmp_path, mode="off", ranks=2)
    assert eager[0].losses != runs["off"][0].losses
