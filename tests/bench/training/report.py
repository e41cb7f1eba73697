"""Files of docs/benchmarks: rows of several commands in one, ratios made anew from all of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from gpus import twin

ROOT = Path(__file__).resolve().parents[3]
Rows = list[dict[str, Any]]
Ratios = Callable[[Rows], dict[str, float]]
TWIN = "_twin"  # Ends the names of reports that one GPU seen as two has made.
_TIMES = ("tokens_per_s", "step_ms", "round_ms", "jitter", "throughput_vs")


def machine() -> str:
    """GPUs, their driver's CUDA and torch; processor and kernel."""
    name = platform.uname()
    parts = [f"{name.system} {name.release} {name.machine}", f"{os.cpu_count()} cores"]
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        parts.insert(0, f"{count} x {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}")
    if twin.is_twin():
        parts.insert(0, "one GPU seen as two")
    return ", ".join([*parts, f"torch {torch.__version__}"])


def commit() -> str:
    """Of the tree; HYPERFRAMES_COMMIT names it where there is no repository."""
    named = os.environ.get("HYPERFRAMES_COMMIT")
    if named:
        return named
    try:
        done = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:  # GPU machines may have no git.
        return "unknown"
    return done.stdout.strip() or "unknown"


def merge(
    path: Path,
    *,
    name: str,
    command: str,
    rows: Rows,
    key: tuple[str, ...],
    ratios: Ratios,
) -> dict[str, Any]:
    """Adds rows to a report; those with the same key are replaced. Written at once or not at all.
    Where one GPU is seen as two, to a report of its own, without times.

    Returns:
        The report: name, command (of the latest call), commit, machine, rows, ratios. Every row
        carries the command, commit and machine that made it.
    """
    if twin.is_twin():
        real, path, name = path, twins_of(path), f"{name}{TWIN}"
        rows, ratios = [twin_row(row) for row in rows], twin_ratios(real, key, ratios)
    with _alone_in(path.parent):
        report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        made_by = {"command": command, "commit": commit(), "machine": machine()}
        new = [{**row, **made_by} for row in rows]
        replaced = {_key(row, key) for row in new}
        kept = [row for row in report.get("rows", ()) if _key(row, key) not in replaced]
        merged = sorted(kept + new, key=lambda row: json.dumps(_key(row, key)))
        report = {"name": name, **made_by, "rows": merged, "ratios": ratios(merged)}
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(report, indent=1) + "\n")
        scratch.replace(path)
        return report


def twins_of(path: Path) -> Path:
    """The report that holds what one GPU seen as two has shown of the same."""
    return path.with_name(f"{path.stem}{TWIN}{path.suffix}")


def twin_row(row: dict[str, Any]) -> dict[str, Any]:
    """As it may be kept: both GPUs' work was done by one, so that no time of it means anything."""
    return {**{name: row[name] for name in row if name not in _TIMES}, "twin": True}


def twin_ratios(real: Path, key: tuple[str, ...], ratios: Ratios) -> Ratios:
    """Of the ratios of memory, those that the rows in ``real`` do not give without the twin's."""
    known: Rows = json.loads(real.read_text())["rows"] if real.exists() else []

    def found(rows: Rows) -> dict[str, float]:
        seen = {_key(row, key) for row in known}
        both = known + [row for row in rows if _key(row, key) not in seen]
        without = ratios(known)
        return {
            name: value
            for name, value in ratios(both).items()
            if name not in without and ("_peak_" in name or name.startswith("longest_"))
        }

    return found


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two commands may fill one file at once: each waits for the other."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _key(row: dict[str, Any], names: Iterable[str]) -> list[Any] | tuple[Any, ...]:
    return tuple(row.get(name) for name in names)


def lengths_of(text: str) -> list[int]:
    """ "8k,32k" as numbers; k is 1024."""
    found = []
    for word in text.lower().split(","):
        factor = 1024 if word.endswith("k") else 1
        found.append(int(word.removesuffix("k")) * factor)
    return found


def word_of(length: int) -> str:
    """32768 as "32k"."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)
