"""Checkpoints of a cluster's jobs: the time limit, and a restart after a rank was killed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint_training import Run, alone, lines, losses
from local_cluster import ROOT, LocalCluster, Node

WORKER = str(ROOT / "tests" / "checkpoint_training.py")
PATHS = os.pathsep.join(str(ROOT / part) for part in ("client/python", "tests"))


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as short,
        LocalCluster(Path(short), (Node("a", "2 x 64MiB"),)) as started,
    ):
        yield started


@pytest.fixture(params=["files", "coordinator"])
def decided_by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def job(decided_by: str, tmp_path: Path, *arguments: str, **spec: Any) -> dict[str, Any]:
    alone = ["/usr/bin/env", "-u", "HYPERFRAMES_COORDINATOR"] if decided_by == "files" else []
    return {
        "name": "checkpoints",
        "command": [
            *alone, sys.executable, WORKER, "--directory", str(tmp_path / "c"),
            "--results", str(tmp_path / "r"), *arguments,
        ],
        "env": {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        "working_directory": str(ROOT),
        **spec,
    }  # fmt: skip


def committed(cluster: LocalCluster, directory: Path) -> list[dict[str, Any]]:
    request = {"directory": str(directory), "committed_only": True}
    return list(cluster.client.call("ListCheckpoints", request).get("checkpoints", ()))


# As 45 s of saving in a grace of 60 s. Real waits: agent and ranks count in clocks of their own.
GRACE_S, SAVING_S = 12, 4.5


def test_c19_a_job_at_its_time_limit_saves_within_its_grace_and_ends_as_timeout(
    decided_by: str, one_node: LocalCluster, tmp_path: Path
) -> None:
    spec = job(
        decided_by, tmp_path, "--steps", "100000", "--every", "0", "--pause", "0.05",
        "--slow-save", str(SAVING_S), ranks=2, time_limit_s=20, grace_s=GRACE_S,
    )  # fmt: skip
    job_id = one_node.submit(spec)
    ended = one_node.wait_job(job_id, 90)
    assert ended["state"] == "JOB_STATE_TIMEOUT", (ended, one_node.whole_log(job_id, 0))
    run = Run(str(tmp_path / "c"), str(tmp_path / "r"))
    assert {"stopped": True} in lines(run, 0) and {"stopped": True} in lines(run, 1)
    name = (tmp_path / "c" / "LATEST").read_text().strip()
    manifest = json.loads((tmp_path / "c" / name / "manifest.json").read_text())
    assert manifest["step"] == len(losses(run, 0)) // 2
    assert manifest["job"] == (job_id if decided_by == "coordinator" else "")


def test_a_job_whose_rank_is_killed_restarts_and_its_losses_are_those_of_an_undisturbed_one(
    decided_by: str, one_node: LocalCluster, tmp_path: Path
) -> None:
    undisturbed = alone(Run(str(tmp_path / "uc"), str(tmp_path / "ur"), steps=6, every=0))
    spec = job(decided_by, tmp_path, "--die-at", "9", ranks=1, max_restarts=1)
    job_id = one_node.submit(spec)
    ended = one_node.wait_job(job_id, 90)
    assert ended["state"] == "JOB_STATE_SUCCEEDED", (ended, one_node.whole_log(job_id, 0))
    run = Run(str(tmp_path / "c"), str(tmp_path / "r"))
    assert losses(run, 0) == undisturbed
    # The save of step 4 may still have been under way when the rank died.
    assert [line["start"] for line in lines(run, 0) if "start" in line] in ([0, 4], [0, 2])
    if decided_by == "coordinator":
        known = committed(one_node, tmp_path / "c")
        assert [int(each["global_step"]) for each in known] == [6, 4]
        assert [int(each["superframe_id"]) for each in known] == [6, 4]
