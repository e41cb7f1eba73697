"""Kills around the coordinator's two phases: the restarted job resumes from what is committed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_training import Losses, Run, launch, lines, losses, output
from local_cluster import ROOT, LocalCluster, Node

WORKER = str(ROOT / "tests" / "checkpoint_training.py")
PATHS = os.pathsep.join(str(ROOT / part) for part in ("client/python", "tests"))


@pytest.fixture(scope="module")
def one_node() -> Iterator[LocalCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as short,
        LocalCluster(Path(short), (Node("a", "2 x 64MiB"),)) as started,
    ):
        yield started


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Losses]:
    path = tmp_path_factory.mktemp("undisturbed")
    run = Run(str(path / "c"), str(path / "r"), every=0)
    assert launch(run) == [0, 0], output(run)
    return [losses(run, rank) for rank in range(2)]


@pytest.mark.parametrize(
    ("failpoint", "starts_at"),
    [
        ("begin.after:1:2", (2,)),  # Begun by one rank or both, never prepared.
        ("prepare.after:1:2", (2,)),  # Perhaps prepared by both.
        ("publish.parent.after:0:2", (2,)),  # Has its final name, but was not committed.
        ("commit.after:0:2", (4,)),  # Committed, but LATEST has not moved.
    ],
)
def test_a_job_killed_around_the_commit_resumes_from_what_the_coordinator_has_committed(
    failpoint: str,
    starts_at: tuple[int, ...],
    one_node: LocalCluster,
    tmp_path: Path,
    undisturbed: list[Losses],
) -> None:
    directory = tmp_path / "c"
    job_id = one_node.submit(
        {
            "name": "killed-around-the-commit",
            "command": [
                sys.executable, WORKER, "--directory", str(directory),
                "--results", str(tmp_path / "r"), "--failpoint", failpoint,
            ],
            "env": {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
            "working_directory": str(ROOT),
            "ranks": 2,
            "max_restarts": 1,
        }
    )  # fmt: skip
    ended = one_node.wait_job(job_id, 120)
    assert ended["state"] == "JOB_STATE_SUCCEEDED", (ended, one_node.whole_log(job_id, 0))
    assert ended["restarts"] == 1, "it was not killed"
    run = Run(str(directory), str(tmp_path / "r"))
    for rank in range(2):
        assert losses(run, rank) == undisturbed[rank]
        first, second = (line["start"] for line in lines(run, rank) if "start" in line)
        assert first == 0 and second in starts_at
    request = {"directory": str(directory), "committed_only": True}
    known = one_node.client.call("ListCheckpoints", request)["checkpoints"]
    assert [int(each["global_step"]) for each in known] == [6, 4]
    left = sorted(entry.name for entry in directory.iterdir() if entry.name != ".lock")
    assert left == ["LATEST", "step-00000004", "step-00000006"]
