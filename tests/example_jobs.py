"""Job specifications that several tests submit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from local_cluster import ROOT


def shell_job(script: str, ranks: int = 1, **fields: Any) -> dict[str, Any]:
    """A job whose ranks each run a line of shell."""
    return {"name": "shell", "command": ["/bin/sh", "-c", script], "ranks": ranks, **fields}


def training_job(mode: str, report: Path, *extra: str, steps: int = 3) -> dict[str, Any]:
    """The example's job, small: two ranks, one a node."""
    return {
        "name": f"tiny-{mode}",
        "command": [
            sys.executable, "examples/train_gpt.py", "--mode", mode, "--steps", str(steps),
            "--layers", "3", "--hidden", "128", "--heads", "4", "--length", "256", "--batch", "2",
            "--report", str(report), *extra,
        ],
        "env": {"PYTHONPATH": str(ROOT / "client" / "python"), "OMP_NUM_THREADS": "1"},
        "working_directory": str(ROOT),
        "ranks": 2,
        "placement": "PLACEMENT_SPREAD",
    }  # fmt: skip
