"""What the parts of the quick start have in common: the job, its end, and a broken promise."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local_cluster import ROOT, LocalCluster
from summary import RunSummary, load_run

WORLD = 2
JOB_TIMEOUT_S = 240.0
# Lets malloc give freed tensors back at once, so that the process's own memory can be read from
# /proc while it runs; the same in every mode.
MALLOC_MMAP_THRESHOLD = str(256 * 1024)


class BrokenPromiseError(Exception):
    """Something that the quick start promises did not hold."""


def say(text: str) -> None:
    print(text, flush=True)


def say_checks(checks: dict[str, bool], otherwise: str) -> None:
    """One line each. BrokenPromiseError(otherwise) when one does not hold."""
    for what, held in checks.items():
        say(f"    {'yes' if held else 'NO '}  {what}")
    if not all(checks.values()):
        raise BrokenPromiseError(otherwise)


def job_spec(
    mode: str, report: Path, steps: int, extra: Sequence[str] = (), **fields: Any
) -> dict[str, Any]:
    """A JobSpec of the example. `fields`: further ones of the message."""
    return {
        "name": f"gpt-{mode}",
        "command": [
            sys.executable, "examples/train_gpt.py", "--mode", mode, "--steps", str(steps),
            "--report", str(report), *extra,
        ],
        "env": {
            "PYTHONPATH": str(ROOT / "client" / "python"),
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": MALLOC_MMAP_THRESHOLD,
            # The profiler says on every start that there is no GPU to watch.
            "KINETO_LOG_LEVEL": "99",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        },
        "working_directory": str(ROOT),
        "ranks": WORLD,
        "placement": "PLACEMENT_SPREAD",
        **fields,
    }  # fmt: skip


def _show_progress(line: str) -> None:
    if line.startswith("step "):
        say(f"    {line}")


def finish(cluster: LocalCluster, job_id: str, report: Path) -> RunSummary:
    """Waits for the job and reads its reports."""
    job = cluster.wait_job(job_id, JOB_TIMEOUT_S, _show_progress)
    if job["state"] != "JOB_STATE_SUCCEEDED":
        logs = "\n".join(cluster.whole_log(job_id, rank)[-1500:] for rank in range(WORLD))
        raise BrokenPromiseError(f"job {job_id} ended as {job['state']}: {job['message']}\n{logs}")
    return load_run(report, WORLD)


def run_mode(
    cluster: LocalCluster, mode: str, results: Path, steps: int, extra: Sequence[str] = ()
) -> RunSummary:
    started = time.monotonic()
    report = results / f"{mode}-{{rank}}.json"
    extra = ["--profile-memory-step", str(steps - 1), *extra]
    job_id = cluster.submit(job_spec(mode, report, steps, extra))
    say(f"==> Training with {mode}: job {job_id}, {WORLD} ranks, {steps} steps")
    run = finish(cluster, job_id, report)
    say(f"    done in {time.monotonic() - started:.0f} s")
    return run


def steps_logged(cluster: LocalCluster, job_id: str, rank: int) -> list[str]:
    """The steps ("3/6") that the rank has printed."""
    lines = cluster.whole_log(job_id, rank).splitlines()
    return [line.split(" ")[1] for line in lines if line.startswith("step ")]
