"""Runs an example as a user would, with HyperFrames off and on, and reads what it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster import ROOT

# The budgets of the tests lie below what moving alone can do and below what recomputing alone can
# do: every plan does both, whatever this machine measures.
DEVICES = "2 x 256MiB"


@dataclass
class Outcome:
    """What one run of an example wrote."""

    losses: list[str]
    parameters: str
    frames: dict[str, Any]

    @property
    def moved_bytes(self) -> int:
        """Per step, to any tier."""
        return int(self.frames["peer_bytes"]) + int(self.frames["host_bytes"])


def run_example(
    name: str, folder: Path, *flags: str, mode: str = "on", ranks: int = 1, **environment: str
) -> list[Outcome]:
    """The reports of all ranks of `examples/NAME FLAGS`, started as its docstring says."""
    report = folder / f"{name}-{mode}-{len(list(folder.iterdir()))}-{{rank}}.json"
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    command = [
        sys.executable, *(torchrun if ranks > 1 else ()), f"examples/{name}", *flags,
        "--report", str(report),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "client" / "python"),
            "HYPERFRAMES_MODE": mode,
            "HYPERFRAMES_HOST_DEVICES": DEVICES,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    texts = [Path(str(report).format(rank=rank)).read_text() for rank in range(ranks)]
    return [Outcome(**json.loads(text)) for text in texts]


def assert_same_training(off: list[Outcome], on: list[Outcome]) -> None:
    """Every loss and the parameters after the last step, to the last bit, on every rank."""
    assert len(off) == len(on)
    for without, framed in zip(off, on, strict=True):
        assert without.frames["mode"] == "off"
        assert len(without.losses) >= 4
        assert framed.losses == without.losses
        assert framed.parameters == without.parameters


def assert_frames_moved_and_recomputed(outcomes: list[Outcome]) -> None:
    """In every step of every rank, under the budget that was asked for."""
    for outcome in outcomes:
        frames = outcome.frames
        assert outcome.moved_bytes > 0
        assert frames["recomputed_bytes"] > 0
        assert frames["recomputed_blocks"] >= frames["forwards"] > 0
        assert_frames_fit(outcome)


def assert_frames_fit(outcome: Outcome) -> None:
    """Within the budget, as planned, and all gone at the end."""
    frames = outcome.frames
    assert frames["activation_peak"] <= frames["activation_budget"]
    assert frames["unplanned_storages"] == 0
    assert frames["engine"]["live_storages"] == 0
