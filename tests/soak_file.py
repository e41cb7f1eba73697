"""docs/benchmarks/soak.json: what each long run adds to it, with the commit that it ran on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from local_cluster import ROOT

DEFAULT = ROOT / "docs" / "benchmarks" / "soak.json"


def commit() -> str:
    """Short, of the checkout; asked for when a run begins, for the tree may move meanwhile."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def merge(
    path: Path,
    run: str,
    command: str,
    at_commit: str,
    rows: list[dict[str, Any]],
    ratios: dict[str, float],
) -> None:
    """Replaces what `run` had written before and leaves the other runs' rows as they are.

    Each row carries its run, command and commit, because the runs are made at different times; the
    file's own `command` and `commit` are those of the last one.
    """
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    kept = [
        {**row, "run": row.get("run", "kills"),
         "command": row.get("command", known["command"]),
         "commit": row.get("commit", known["commit"])}
        for row in known.get("rows", [])
        if row.get("run", "kills") != run
    ]  # fmt: skip
    new = [{**row, "run": run, "command": command, "commit": at_commit} for row in rows]
    prefix = f"{run}_".replace("-", "_")
    others = {k: v for k, v in known.get("ratios", {}).items() if not k.startswith(prefix)}
    result = {
        "name": "soak",
        "command": command,
        "commit": at_commit,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "rows": sorted(kept + new, key=lambda row: str(row["run"])),
        "ratios": {**others, **{prefix + name: value for name, value in ratios.items()}},
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
