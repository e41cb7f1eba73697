"""What lies on the disk: which checkpoint is taken, and what is said of one that is not whole."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hyperframes as hf
from checkpoint_training import Losses, Run, alone, lines
from hyperframes import _checkpoint_files as files
from hyperframes._failpoints import SAVE_POINTS, passed

STEPS = 8


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    path = tmp_path_factory.mktemp("undisturbed")
    return alone(Run(str(path / "c"), str(path / "r"), steps=STEPS, every=0))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Steps 2 and 4 are committed."""
    started = Run(str(tmp_path / "c"), str(tmp_path / "r"), steps=5, keep=2)
    alone(started)
    assert names(started) == ["step-00000002", "step-00000004"]
    started.steps = STEPS
    return started


def names(run: Run) -> list[str]:
    return sorted(p.name for p in Path(run.directory).iterdir() if p.name.startswith("step-"))


def last_start(run: Run) -> int:
    return [int(line["start"]) for line in lines(run, 0) if "start" in line][-1]


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_every_point_of_a_save_is_passed(run: Run) -> None:
    # A folder in the way of the next save, so that it has to be moved aside.
    (Path(run.directory) / "step-00000006").mkdir()
    (Path(run.directory) / "step-00000006" / "junk").touch()
    passed.clear()
    alone(run)
    assert set(passed) == set(SAVE_POINTS)


def test_a_run_goes_on_bit_equal_and_keeps_as_many_as_it_is_told(
    run: Run, undisturbed: Losses
) -> None:
    assert alone(run) == undisturbed
    assert last_start(run) == 4
    assert names(run) == ["step-00000006", "step-00000008"]
    assert (Path(run.directory) / "LATEST").read_text() == "step-00000008\n"


@pytest.mark.parametrize("which", ["tensors/__0_0.distcp", "tensors/.metadata", "rank-00000.state"])
def test_a_flipped_byte_is_named_and_the_older_checkpoint_taken(
    which: str, run: Run, undisturbed: Losses, capfd: pytest.CaptureFixture[str]
) -> None:
    flip_a_byte(Path(run.directory) / "step-00000004" / which)
    assert alone(run) == undisturbed
    assert last_start(run) == 2
    said = capfd.readouterr().err
    assert which in said and "damaged" in said and "resuming from step-00000002" in said


@pytest.mark.parametrize("which", ["manifest.json", "rank-00000.json"])
def test_a_truncated_manifest_is_named_and_the_older_checkpoint_taken(
    which: str, run: Run, undisturbed: Losses, capfd: pytest.CaptureFixture[str]
) -> None:
    path = Path(run.directory) / "step-00000004" / which
    path.write_bytes(path.read_bytes()[:-40])
    assert alone(run) == undisturbed
    assert last_start(run) == 2
    assert which in capfd.readouterr().err


def test_nothing_whole_is_data_loss_and_never_a_start_from_zero(run: Run) -> None:
    for name in names(run):
        (Path(run.directory) / name / "manifest.json").unlink()
    with pytest.raises(hf.DataLoss, match=r"step-00000004.*step-00000002") as raised:
        alone(run)
    assert "manifest.json" in str(raised.value)
    assert names(run) == ["step-00000002", "step-00000004"], "nothing was deleted"


@pytest.mark.parametrize(
    ("content", "words", "start"),
    [
        (None, "LATEST is missing", 4),
        (b"\xff\xfe garbage", "names no checkpoint", 4),
        (b"../../etc", "names no checkpoint", 4),
        (b"step-00000099\n", "which is not there", 4),
        (b"step-00000002\n", "", 2),
    ],
)
def test_latest_is_followed_where_it_makes_sense(
    content: bytes | None, words: str, start: int, run: Run, undisturbed: Losses,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    latest = Path(run.directory) / "LATEST"
    latest.unlink() if content is None else latest.write_bytes(content)
    assert alone(run) == undisturbed
    assert last_start(run) == start
    assert words in capfd.readouterr().err


def test_what_was_left_behind_is_deleted_by_the_next_save(run: Run) -> None:
    left = [".step-00000006.abc.partial", ".step-00000002.def.removed"]
    for name in left:
        (Path(run.directory) / name).mkdir()
        (Path(run.directory) / name / "file").write_bytes(b"x")
    (Path(run.directory) / ".mine").mkdir()  # Not ours: stays.
    alone(run)
    assert not [name for name in left if (Path(run.directory) / name).exists()]
    assert (Path(run.directory) / ".mine").is_dir()


def test_a_directory_of_another_run_is_not_written_into(run: Run) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(hf.FailedPrecondition, match=r"another run.*step-00000004.*resume\(\)"),
        hf.checkpoint(run.directory, model=model, optimizer=optimizer) as checkpoints,
    ):
        checkpoints.save()
        checkpoints.wait()


def test_another_model_is_refused_by_the_tensors_name(run: Run) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with (
        pytest.raises(hf.FailedPrecondition, match=r"differ from the ones in.*weight"),
        hf.checkpoint(run.directory, model=model, optimizer=optimizer) as checkpoints,
    ):
        checkpoints.resume()


def test_a_directory_has_one_training_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = (
        "import sys; from pathlib import Path; from hyperframes._checkpoint_files import *\n"
        "lock = DirectoryLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True)\n"
        "sys.stdin.read()"  # Until it is killed, or this test has gone.
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", holder, run.directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lock = files.DirectoryLock(Path(run.directory))
        with pytest.raises(hf.FailedPrecondition, match=f"process {process.pid} on"):
            lock.acquire(wait_s=0)
        process.kill()
    alone(run)  # Killed: free at once.


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (open, (str(self._path), "w"))


@pytest.mark.parametrize("which", ["tensors/.metadata", "rank-00000.state"])
def test_resuming_never_runs_code_from_a_file_whose_digests_are_right(
    which: str, run: Run, tmp_path: Path
) -> None:
    folder = Path(run.directory) / "step-00000004"
    mark = tmp_path / "ran"
    evil = {"extra": Evil(mark)}
    if which.endswith("state"):
        torch.save(evil, folder / which)
    else:
        (folder / which).write_bytes(pickle.dumps(evil))
    shard = json.loads((folder / "rank-00000.json").read_text())
    shard["files"][which] = files.digest_file(folder / which)
    (folder / "rank-00000.json").write_text(json.dumps(shard))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["ranks"][0]["sha256"] = files.digest_file(folder / "rank-00000.json")["sha256"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(hf.DataLoss, match="cannot be read"):
        alone(run)
    assert not mark.exists()


def test_what_could_not_be_read_back_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    class Callback:
        def state_dict(self) -> dict[str, Any]:
            return {"hooks": [len]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(hf.InvalidArgument, match=r"extra\['callback'\]\['hooks'\]\[0\] is a"),
        hf.checkpoint(
            tmp_path, model=model, optimizer=optimizer, extra={"callback": Callback()}
        ) as checkpoints,
    ):
        checkpoints.save()
        checkpoints.wait()
    assert not list(tmp_path.glob("step-*"))


def test_numpys_arrays_and_generators_and_pythons_containers_come_back_as_they_were(
    tmp_path: Path,
) -> None:
    numpy = pytest.importorskip("numpy")

    class Holder:
        def __init__(self, value: Any) -> None:
            self.value = value

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    value = {
        "array": numpy.arange(6, dtype=">i2").reshape(2, 3), "scalar": numpy.float64(0.1),
        "tuple": (1, None, True), 3: {"set": {1, 2}}, "bytes": b"\0\1", "empty": numpy.zeros(0),
    }  # fmt: skip
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = Holder(value), Holder(None)
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    for holder, generator in ((first, generators[0]), (second, generators[1])):
        with hf.checkpoint(
            tmp_path, model=model, optimizer=optimizer,
            extra={"holder": holder, "generator": generator},
        ) as checkpoints:  # fmt: skip
            checkpoints.resume()
            checkpoints.save()
            numpy.random.seed(5)
    assert numpy.array_equal(second.value.pop("array"), value.pop("array"))
    assert second.value.pop("empty").shape == value.pop("empty").shape == (0,)
    assert second.value == value and type(second.value["scalar"]) is numpy.float64
    assert torch.equal(
        torch.rand(3, generator=generators[0]), torch.rand(3, generator=generators[1])
    )


def test_a_parameter_without_a_gradient_so_far_has_no_optimizer_state_afterwards_either(
    tmp_path: Path,
) -> None:
    def train(steps: int, directory: Path) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with hf.checkpoint(directory, model=model, optimizer=optimizer, every=2) as checkpoints:
            for step in range(checkpoints.resume(), steps):
                optimizer.zero_grad()
                sum(part(torch.ones(2)) for part in model[: 1 + step // 3]).sum().backward()
                optimizer.step()
                checkpoints.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    train(2, tmp_path / "stopped")
    assert torch.equal(train(6, tmp_path / "stopped"), train(6, tmp_path / "whole"))
