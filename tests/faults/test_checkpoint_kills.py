"""Kills at every point of a save: what is resumed from is whole, and what follows is bit-equal.

Before each kill the directory holds one committed checkpoint, a folder that is in the way of the
next one, and what an earlier kill has left behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_training import Losses, Run, launch, lines, losses, output
from hyperframes._failpoints import SAVE_POINTS

STEPS = 6
# Passed by the rank that commits alone.
FIRST_ONLY = (
    "tensors.rename", "manifest", "aside", "publish", "commit", "latest", "retire", "remove",
)  # fmt: skip
KILLS = [
    *[(point, 0) for point in SAVE_POINTS],
    *[(point, 1) for point in SAVE_POINTS if not point.startswith(FIRST_ONLY)],
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Losses]:
    """Losses of both ranks in a run that nobody disturbs."""
    path = tmp_path_factory.mktemp("undisturbed")
    run = Run(str(path / "checkpoints"), str(path / "results"), steps=STEPS, every=0)
    assert launch(run) == [0, 0], output(run)
    return [losses(run, rank) for rank in range(2)]


@pytest.fixture(scope="module")
def one_committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 2 is committed; step 4 was never, but has a folder; another was left in the middle."""
    path = tmp_path_factory.mktemp("one-committed")
    run = Run(str(path / "checkpoints"), str(path / "results"), steps=2)
    assert launch(run) == [0, 0], output(run)
    directory = path / "checkpoints"
    shutil.copytree(directory / "step-00000002", directory / "step-00000004")
    shutil.copytree(directory / "step-00000002", directory / ".step-00000004.0a1b2c.partial")
    return directory


@pytest.fixture
def directory(one_committed: Path, tmp_path: Path) -> Iterator[Path]:
    copied = tmp_path / "checkpoints"
    shutil.copytree(one_committed, copied)
    yield copied
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.parametrize(("point", "rank"), KILLS)
def test_a_run_killed_while_saving_goes_on_bit_equal(
    point: str, rank: int, directory: Path, tmp_path: Path, undisturbed: list[Losses]
) -> None:
    where = {"HYPERFRAMES_FAILPOINT": f"{point}:{rank}"}
    run = Run(str(directory), str(tmp_path / "results"), steps=STEPS, environment=where)
    codes = launch(run)
    assert codes[rank] == -9, f"{point} was not passed by rank {rank}: {codes}\n{output(run)}"
    run.environment = {}
    assert launch(run) == [0, 0], output(run)
    for each in range(2):
        assert losses(run, each) == {
            number: loss for number, loss in undisturbed[each].items() if number >= 4
        }
        starts = [line["start"] for line in lines(run, each) if "start" in line]
        assert len(starts) == 2 and starts[0] == 2 and starts[1] in (2, 4)
    left = sorted(entry.name for entry in directory.iterdir() if entry.name != ".lock")
    assert left == ["LATEST", "step-00000006"]
