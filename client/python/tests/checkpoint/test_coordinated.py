"""Commits at the coordinator, against a small one that is scripted by the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hyperframes as hf
from checkpoint_training import Run, alone, lines, losses
from hyperframes._checkpoint_commit import CoordinatorCommitter
from hyperframes._checkpoint_ranks import Ranks
from hyperframes._config import Cluster
from hyperframes.errors import HyperFramesError, error_from_code

CLUSTER = Cluster("localhost:1", "job-1", "token", "", 0, 1, 1.0)


class FakeCoordinator:
    """The service of checkpoint.proto for one rank, and a list of failures by method."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.failures: dict[str, list[HyperFramesError]] = {}
        self.hidden: dict[str, Callable[[], None]] = {}  # Runs when the method is called.
        self._ids = itertools.count(1)

    def call(
        self, method: str, request: Mapping[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        self.calls.append(method)
        if self.failures.get(method):
            raise self.failures[method].pop(0)
        if method in self.hidden:
            self.hidden[method]()
        if method not in ("ListCheckpoints", "WatchCheckpoint"):
            assert request["caller"]["job_token"] == "token"
        answer: dict[str, Any] = getattr(self, method)(request)
        return answer

    def _under_way(self, directory: str) -> list[dict[str, Any]]:
        states = ("CHECKPOINT_STATE_OPEN", "CHECKPOINT_STATE_PREPARED")
        return [
            c for c in self.known.values() if c["directory"] == directory and c["state"] in states
        ]

    def BeginCheckpoint(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802
        assert len(request["topology_hash"]) == 64 and Path(request["directory"]).is_absolute()
        same = [c for c in self.known.values() if c["name"] == request["name"]]
        if any(c["state"] == "CHECKPOINT_STATE_COMMITTED" for c in same):
            raise error_from_code(6, f"step {request['global_step']} is committed")
        if self._under_way(request["directory"]):
            raise error_from_code(9, "another one is under way")
        begun = {
            "id": f"checkpoint/{next(self._ids)}", "state": "CHECKPOINT_STATE_OPEN",
            "directory": request["directory"], "name": request["name"],
            "global_step": str(request["global_step"]),  # int64 is a string in JSON.
        }  # fmt: skip
        self.known[begun["id"]] = begun
        return dict(begun)

    def _move(self, request: Mapping[str, Any], state: str, *allowed: str) -> dict[str, Any]:
        found = self.known.get(request["checkpoint_id"])
        if found is None:
            raise error_from_code(5, "no such checkpoint")
        if found["state"] not in (*allowed, state):
            raise error_from_code(9, f"it is {found['state']}")
        found["state"] = state
        return dict(found)

    def PrepareCheckpoint(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802
        assert len(request["shard"]["digest"]) == 64 and request["shard"]["bytes"] > 0
        self.known[request["checkpoint_id"]]["micro_batches"] = request["shard"]["micro_batches"]
        return self._move(request, "CHECKPOINT_STATE_PREPARED", "CHECKPOINT_STATE_OPEN")

    def CommitCheckpoint(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802
        return self._move(request, "CHECKPOINT_STATE_COMMITTED", "CHECKPOINT_STATE_PREPARED")

    def AbortCheckpoint(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.known[request["checkpoint_id"]].setdefault("message", request["reason"])
        open_or_prepared = ("CHECKPOINT_STATE_OPEN", "CHECKPOINT_STATE_PREPARED")
        return self._move(request, "CHECKPOINT_STATE_ABORTED", *open_or_prepared)

    def WatchCheckpoint(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802
        return dict(self.known[request["checkpoint_id"]])

    def RetireCheckpoint(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802
        if request["checkpoint_id"] == self.committed()[-1]["id"]:
            raise error_from_code(9, "the newest one")
        return self.known.pop(request["checkpoint_id"])

    def ListCheckpoints(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {"checkpoints": self.committed()[::-1]}

    def committed(self) -> list[dict[str, Any]]:
        return [c for c in self.known.values() if c["state"] == "CHECKPOINT_STATE_COMMITTED"]

    def names(self) -> list[str]:
        return [str(c["name"]) for c in self.committed()]


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator()


@pytest.fixture
def run(coordinator: FakeCoordinator, tmp_path: Path) -> Run:
    committer = CoordinatorCommitter(
        coordinator.call, CLUSTER, tmp_path / "c", Ranks(10), patience_s=0.5, pause=lambda _: None
    )
    return Run(
        str(tmp_path / "c"), str(tmp_path / "r"), steps=4, keep=2, committer=committer,
        asynchronous=False,
    )  # fmt: skip


def folders(run: Run) -> list[str]:
    return sorted(p.name for p in Path(run.directory).iterdir() if not p.name.startswith(".l"))


def test_a_save_is_begun_prepared_and_committed_and_old_ones_are_retired_before_their_files(
    run: Run, coordinator: FakeCoordinator
) -> None:
    old = Path(run.directory) / "step-00000002"
    coordinator.hidden["RetireCheckpoint"] = lambda: _assert(old.is_dir())
    run.steps = 6
    alone(run)
    order = [call for call in coordinator.calls if call != "ListCheckpoints"]
    assert order[:3] == ["BeginCheckpoint", "PrepareCheckpoint", "CommitCheckpoint"]
    assert order.count("RetireCheckpoint") == 1
    assert coordinator.names() == ["step-00000004", "step-00000006"]
    assert folders(run) == ["LATEST", "step-00000004", "step-00000006"]
    assert coordinator.committed()[-1]["micro_batches"] == [10, 11]


def _assert(condition: bool) -> None:
    assert condition


def test_what_the_coordinator_has_committed_is_resumed_whatever_latest_says(
    run: Run, coordinator: FakeCoordinator
) -> None:
    alone(run)
    # Renamed and even LATEST, but the commit never reached the coordinator.
    newest = coordinator.committed()[-1]
    newest["state"] = "CHECKPOINT_STATE_ABORTED"
    run.steps = 6
    alone(run)
    assert [line["start"] for line in lines(run, 0) if "start" in line] == [0, 2]
    assert coordinator.names() == ["step-00000004", "step-00000006"], "moved aside and made anew"
    assert len(losses(run, 0)) == 12


def test_committed_checkpoints_whose_folders_are_gone_are_data_loss(
    run: Run, coordinator: FakeCoordinator
) -> None:
    alone(run)
    for name in ("step-00000002", "step-00000004"):
        (Path(run.directory) / name).rename(Path(run.results) / name)
    with pytest.raises(hf.DataLoss, match=r"step-00000004.*file system mounted"):
        alone(run)


def test_a_directory_from_before_the_coordinator_is_resumed_by_its_files(
    run: Run, coordinator: FakeCoordinator, capfd: pytest.CaptureFixture[str]
) -> None:
    committer, run.committer = run.committer, None
    alone(run)
    run.committer, run.steps = committer, 5
    alone(run)
    assert [line["start"] for line in lines(run, 0) if "start" in line] == [0, 4]
    assert "its files decide" in capfd.readouterr().err


def test_a_coordinator_that_restarts_during_a_save_is_asked_again(
    run: Run, coordinator: FakeCoordinator
) -> None:
    for method in ("BeginCheckpoint", "PrepareCheckpoint", "CommitCheckpoint"):
        coordinator.failures[method] = [hf.Unavailable("restarting"), hf.DeadlineExceeded("slow")]
    alone(run)
    assert coordinator.names() == ["step-00000002", "step-00000004"]


def test_training_goes_on_without_the_coordinator_and_says_that_it_does_not_save(
    run: Run, coordinator: FakeCoordinator, capfd: pytest.CaptureFixture[str]
) -> None:
    # For longer than the committer's patience.
    coordinator.failures["BeginCheckpoint"] = [hf.Unavailable("down")] * 100_000

    def back() -> None:
        coordinator.failures.clear()

    coordinator.hidden["AbortCheckpoint"] = back
    alone(run)
    assert "no checkpoint was taken: the coordinator did not answer BeginCheckpoint" in (
        capfd.readouterr().err
    )
    ended = lines(run, 0)[-1]
    assert (ended["saved"], ended["skipped"], ended["failed"]) == (0, 2, 0)
    assert folders(run) == []


def test_an_abort_that_nobody_heard_is_repeated_before_the_next_begin(
    run: Run, coordinator: FakeCoordinator
) -> None:
    coordinator.failures["PrepareCheckpoint"] = [error_from_code(3, "another digest")]
    coordinator.failures["AbortCheckpoint"] = [hf.Unavailable("down")]
    run.continue_after_failure = True
    alone(run)
    assert coordinator.names() == ["step-00000004"]
    assert (
        "another digest" in next(c for c in coordinator.known.values() if "message" in c)["message"]
    )


def test_an_abort_by_another_rank_is_told_with_its_reason(
    run: Run, coordinator: FakeCoordinator
) -> None:
    def abort() -> None:
        for checkpoint in coordinator.known.values():
            checkpoint.update(state="CHECKPOINT_STATE_ABORTED", message="rank 3: disk full")

    def prepare(request: Mapping[str, Any]) -> dict[str, Any]:
        abort()
        return dict(coordinator.known[request["checkpoint_id"]])

    coordinator.PrepareCheckpoint = prepare  # type: ignore[method-assign]
    with pytest.raises(hf.FailedPrecondition, match="rank 3: disk full"):
        alone(run)
    assert folders(run) == []


def test_a_job_of_several_ranks_without_process_group_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERFRAMES_COORDINATOR", "localhost:1")
    monkeypatch.setenv("HYPERFRAMES_JOB_ID", "job")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(hf.FailedPrecondition, match="init_process_group"),
        hf.checkpoint(tmp_path, model=model, optimizer=optimizer),
    ):
        pass
