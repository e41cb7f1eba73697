"""Jobs of faulty_worker.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def worker_job(way: str, directory: Path) -> dict[str, Any]:
    """One rank that goes that way; what it writes, it writes into `directory`."""
    return {
        "name": way,
        "command": [sys.executable, str(Path(__file__).with_name("faulty_worker.py")), way],
        "working_directory": str(directory),
        "ranks": 1,
    }
