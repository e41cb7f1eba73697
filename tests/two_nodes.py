"""Two nodes of which neither can lend enough to a job of its own, and the job that needs both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from local_cluster import ROOT, LocalCluster, Node, binary

WORKER = str(ROOT / "tests" / "cluster_worker.py")
PATHS = os.pathsep.join(str(ROOT / part) for part in ("client/python", "tests"))
LENGTH = 160  # All of a step's activations: 15.3 MiB.
BORROWS = ("--activation-budget", "5MiB", "--forbid", "recompute", "--forbid", "selective")

# One GPU that is large enough to train on or to lend, one that is too small to lend what the job
# needs, and no host memory.
GPUS = "96MiB,2MiB"
NETWORK = {"host-bytes": "0B", "network-bandwidth": "2GB"}


def two_nodes() -> list[Node]:
    return [Node(name, GPUS, dict(NETWORK)) for name in ("a", "b")]


def worker_job(report: Path, steps: int, *arguments: str, mode: str = "on") -> dict[str, Any]:
    """One rank that trains the small GPT; with BORROWS most of its frames have to go elsewhere."""
    lengths = ",".join([str(LENGTH)] * steps)
    command = ["/usr/bin/env", f"HYPERFRAMES_MODE={mode}", sys.executable, WORKER]
    return {
        "name": "across-nodes",
        "command": [*command, "--lengths", lengths, "--report", str(report), *arguments],
        "env": {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        "working_directory": str(ROOT),
        "ranks": 1,
    }


def finish(cluster: LocalCluster, job_id: str) -> dict[str, Any]:
    """The job, which has to succeed."""
    job = cluster.wait_job(job_id, 240)
    if job["state"] != "JOB_STATE_SUCCEEDED":
        raise AssertionError((job["message"], cluster.whole_log(job_id, 0)[-3000:]))
    return job


def nodes_of(job: dict[str, Any]) -> tuple[str, str]:
    """The node of the job's rank, and the other one."""
    own = str(job["workers"][0]["node"])
    return own, "a" if own == "b" else "b"


def hfctl(cluster: LocalCluster, *arguments: str) -> str:
    """What it prints; it has to succeed."""
    command = [str(binary("client/cli:hfctl")), "--coordinator", cluster.address, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout


def transfer_pids(cluster: LocalCluster, node: str) -> list[int]:
    """The hftransfers that serve the node's GPUs to others."""
    socket = cluster.agents[node].ready["socket"].encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/hftransfer") and socket in words:
            found.append(int(entry.name))
    return found
