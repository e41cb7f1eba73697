"""As many jobs as there are GPUs at once, each on its own, with nothing to borrow from peers."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperframes import _native

from .modes import available_host_bytes


class Together:
    """A barrier between processes, by files of one folder.

    Args:
        place: "FOLDER:RANK:COUNT".
    """

    def __init__(self, place: str, patience_s: float) -> None:
        folder, rank, count = place.rsplit(":", 2)
        self._folder, self._rank, self._count = Path(folder), int(rank), int(count)
        self._patience = patience_s
        self._number = 0

    def __call__(self, what: str) -> None:
        """Returns once all are here. RuntimeError: somebody did not come in time."""
        stem = f"{self._number:05}-{what.replace(' ', '_').replace('/', '_')}"
        self._number += 1
        (self._folder / f"{stem}.{self._rank}").touch()
        until = time.monotonic() + self._patience
        missing = set(range(self._count))
        while missing:
            missing = {r for r in missing if not (self._folder / f"{stem}.{r}").exists()}
            if missing and time.monotonic() > until:
                raise RuntimeError(f"{what}: job {min(missing)} did not come")
            if missing:
                time.sleep(0.0005)  # Of a turn of seconds: nothing tells a process of a file.


def run_jobs(
    script: str, arguments: list[str], count: int, seconds: float, say: Callable[[str], None]
) -> list[list[dict[str, Any]]]:
    """Starts the script once per GPU; the rows of each, as far as it came. RuntimeError: one has
    none."""
    whole = os.environ.get("HYPERFRAMES_HOST_BYTES")
    most = _native.parse_bytes(whole) if whole else int(available_host_bytes() * 0.85)
    share = most // count
    with tempfile.TemporaryDirectory(prefix="hf-jobs-") as scratch:
        folder = Path(scratch)
        jobs = []
        for rank in range(count):
            environment = {**os.environ, "HYPERFRAMES_HOST_BYTES": str(share)}
            if "--tiny" not in arguments:
                environment["CUDA_VISIBLE_DEVICES"] = str(rank)
            command = [
                sys.executable, "-u", script, *arguments,
                f"--together={folder}:{rank}:{count}", f"--out={folder}/job-{rank}.json",
            ]  # fmt: skip
            out = None if rank == 0 else (folder / f"log-{rank}").open("w")
            jobs.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
        codes = _wait_for(jobs, seconds)
        found = []
        for rank, code in enumerate(codes):
            if code:
                log = folder / f"log-{rank}"
                say(log.read_text()[-3000:] if log.exists() else "")
                say(f"job {rank} ended with {code}")
            report = folder / f"job-{rank}.json"
            if not report.exists():
                raise RuntimeError(f"job {rank} ended with {code} before it had a row")
            found.append(json.loads(report.read_text())["rows"])
        return found


def _wait_for(jobs: list[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Exit codes; all are killed once one failed, or the time is over: the others wait for it."""
    until = time.monotonic() + seconds
    while any(job.poll() is None for job in jobs) and time.monotonic() < until:
        if any(job.poll() for job in jobs):
            break
        time.sleep(0.1)  # Of minutes: no call waits for the first of several processes.
    for job in jobs:
        if job.poll() is None:
            job.kill()
    return [job.wait() for job in jobs]


def combine(jobs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row per mode: throughput of all jobs together, the largest peak of any."""
    by = [{row["mode"]: row for row in rows} for rows in jobs]
    rows = []
    for mode in by[0]:
        same = [one.get(mode, {"failed": "missing"}) for one in by]
        row: dict[str, Any] = {
            "part": "jobs", "length": same[0].get("length"), "mode": mode, "gpus": len(jobs),
            "jobs": same,
        }  # fmt: skip
        failed = next((one["failed"] for one in same if "failed" in one), None)
        if failed:
            rows.append({**row, "failed": failed})
            continue
        row |= {
            "gradients": same[0]["gradients"]
            if len({one["gradients"] for one in same}) == 1
            else "different",
            "round_ms": [list(r) for r in zip(*(one["round_ms"] for one in same), strict=False)],
            "tokens_per_s": sum(one["tokens_per_s"] for one in same),
            "peak_bytes": max(one["peak_bytes"] for one in same),
        }
        rows.append(row)
    _compare(rows)
    return rows


def _compare(rows: list[dict[str, Any]]) -> None:
    good = {row["mode"]: row for row in rows if "failed" not in row}
    for row in good.values():
        row["throughput_vs"], row["peak_vs"] = {}, {}
        for name in ("nothing", "checkpoint"):
            other = good.get(name)
            if other is None:
                continue
            pairs = zip(other["round_ms"], row["round_ms"], strict=False)
            ratios = [sum(1 / t for t in mine) / sum(1 / t for t in theirs)
                      for theirs, mine in pairs]  # fmt: skip
            row["throughput_vs"][name] = statistics.median(ratios)
            row["peak_vs"][name] = row["peak_bytes"] / other["peak_bytes"]
