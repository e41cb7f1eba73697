"""Two ranks that save together: one is killed, one cannot write, both are asked to stop."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from checkpoint_training import (
    Losses,
    Run,
    finish,
    launch,
    lines,
    losses,
    output,
    start,
)

STEPS = 6


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Losses]:
    path = tmp_path_factory.mktemp("undisturbed")
    run = Run(str(path / "c"), str(path / "r"), steps=STEPS, every=0)
    assert launch(run) == [0, 0], output(run)
    return [losses(run, rank) for rank in range(2)]


def make(path: Path, **options: object) -> Run:
    return Run(str(path / "c"), str(path / "r"), steps=STEPS, **options)  # type: ignore[arg-type]


def names(run: Run) -> list[str]:
    return sorted(p.name for p in Path(run.directory).iterdir() if p.name != ".lock")


def errors(run: Run, rank: int) -> list[str]:
    return [f"{line['type']}: {line['error']}" for line in lines(run, rank) if "error" in line]


@pytest.mark.parametrize("micro_batch", [6, 7])
def test_c16_killed_within_an_accumulation_group_the_run_goes_on_bit_equal(
    micro_batch: int, tmp_path: Path, undisturbed: list[Losses]
) -> None:
    run = make(tmp_path, kill_at=(1, micro_batch), step_every_micro_batch=True, asynchronous=False)
    assert launch(run)[1] == -9
    run.kill_at = None
    assert launch(run) == [0, 0], output(run)
    assert [losses(run, rank) for rank in range(2)] == undisturbed
    assert [line["start"] for line in lines(run, 0) if "start" in line] == [0, 2]
    assert lines(run, 1)[-1]["order_table"] == [10, 11]


def test_c15_rank_0_dies_while_saving_and_the_other_rank_names_it(
    tmp_path: Path, undisturbed: list[Losses]
) -> None:
    where = {"HYPERFRAMES_FAILPOINT": "tensors.write.after:0"}
    run = make(tmp_path, asynchronous=False, environment=where)
    codes = launch(run)
    assert codes[0] == -9 and codes[1] == 1
    assert [e[:46] for e in errors(run, 1)] == ["Unavailable: Rank 0 does not answer any more ("]
    assert [name for name in names(run) if name.endswith(".partial")], "a partial folder is left"
    run.environment = {}
    assert launch(run) == [0, 0], output(run)
    assert [losses(run, rank) for rank in range(2)] == undisturbed
    assert names(run) == ["LATEST", "step-00000006"]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_c15_a_rank_that_cannot_write_is_named_on_all_and_the_next_save_works(
    asynchronous: bool, tmp_path: Path, undisturbed: list[Losses]
) -> None:
    run = make(
        tmp_path, asynchronous=asynchronous, file_limits={1: 12_000}, continue_after_failure=True
    )  # fmt: skip
    assert launch(run) == [0, 0], output(run)
    for rank in range(2):
        told = errors(run, rank)
        assert len(told) == 1, told
        assert told[0].startswith("ResourceExhausted: Rank 1: The checkpoint could not be written")
        assert (
            f"to {run.directory}: File too large" in told[0]
            and "next save that is due tries again" in told[0]
        )
    assert [losses(run, rank) for rank in range(2)] == undisturbed
    assert names(run) == ["LATEST", "step-00000006"]
    assert lines(run, 0)[-1]["failed"] == 1


def test_another_world_size_is_refused_with_both_and_loads_when_told_to(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.steps = 2
    assert launch(run) == [0, 0], output(run)
    run.world, run.steps = 1, STEPS
    assert launch(run) == [1]
    assert "world_size was 2, is 1" in output(run) and "resume(strict=False)" in output(run)
    run.strict = False
    run.results += "-2"
    assert launch(run) == [0], output(run)
    assert "is continued, but not exactly" in output(run)
    assert lines(run, 0)[0] == {"start": 2, "micro_batches": 4}
    assert names(run) == ["LATEST", "step-00000006"]


def test_sigterm_on_one_rank_makes_all_save_at_the_same_step_and_the_run_goes_on(
    tmp_path: Path, undisturbed: list[Losses]
) -> None:
    signalled = tmp_path / "signalled"
    run = make(tmp_path, every=0, hold=str(signalled))
    ranks = start(run)
    deadline = time.monotonic() + 60
    while not [line for line in lines(run, 1) if "id" in line] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ranks[1].pid is not None
    os.kill(ranks[1].pid, signal.SIGTERM)
    signalled.touch()
    assert finish(ranks) == [0, 0], output(run)
    assert all({"stopped": True} in lines(run, rank) for rank in range(2))
    (folder,) = [name for name in names(run) if name.startswith("step-")]
    assert 1 <= int(folder[5:]) < STEPS
    assert launch(run) == [0, 0], output(run)
    assert [losses(run, rank) for rank in range(2)] == undisturbed


def test_sharded_parameters_come_back_bit_equal(tmp_path: Path) -> None:
    whole = Run(str(tmp_path / "wc"), str(tmp_path / "wr"), steps=STEPS, every=0, sharded=True)
    run = make(tmp_path, sharded=True)
    run.steps = 3
    assert launch(whole) == [0, 0], output(whole)
    assert launch(run) == [0, 0], output(run)
    run.steps = STEPS
    assert launch(run) == [0, 0], output(run)
    assert [line["start"] for line in lines(run, 0) if "start" in line] == [0, 2]
    assert [losses(run, rank) for rank in range(2)] == [losses(whole, rank) for rank in range(2)]


def test_a_run_under_an_open_context_with_a_budget_goes_on_bit_equal(tmp_path: Path) -> None:
    whole = Run(str(tmp_path / "wc"), str(tmp_path / "wr"), steps=STEPS, every=0, width=256)
    run = make(tmp_path, framed=True, budget="30KiB", width=256)
    assert launch(whole) == [0, 0], output(whole)
    run.steps = 3
    assert launch(run) == [0, 0], output(run)
    run.steps = STEPS
    assert launch(run) == [0, 0], output(run)
    assert all(line["bytes_not_kept"] > 0 for line in lines(run, 0) if "bytes_not_kept" in line)
    assert [line["start"] for line in lines(run, 0) if "start" in line] == [0, 2]
    assert [losses(run, rank) for rank in range(2)] == [losses(whole, rank) for rank in range(2)]
