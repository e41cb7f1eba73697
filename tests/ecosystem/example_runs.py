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
    name: str,
    folder: Path,
    *flags: str,
    mode: str = "on",
    devices: str = DEVICES,
    launcher: tuple[str, ...] = (),
) -> Outcome:
    """The report of `examples/NAME FLAGS`, started by python or by `launcher` (of python -m)."""
    report = folder / f"{name}-{mode}-{len(list(folder.iterdir()))}.json"
    command = [sys.executable, *launcher, f"examples/{name}", *flags, "--report", str(report)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "client" / "python"),
        "HYPERFRAMES_MODE": mode,
        "HYPERFRAMES_HOST_DEVICES": devices,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return Outcome(**json.loads(report.read_text()))


def assert_same_training(off: Outcome, on: Outcome) -> None:
    """Every loss and the parameters after the last step, to the last bit."""
    assert off.frames == {"mode": "off"}
    assert len(off.losses) >= 4
    assert on.losses == off.losses
    assert on.parameters == off.parameters


def assert_frames_moved_and_recomputed(outcome: Outcome) -> None:
    """In every step, under the budget that was asked for."""
    frames = outcome.frames
    assert outcome.moved_bytes > 0
    assert frames["recomputed_bytes"] > 0
    assert frames["recomputed_blocks"] >= frames["forwards"] > 0
    assert frames["activation_peak"] <= frames["activation_budget"]
    assert frames["engine"]["live_storages"] == 0
