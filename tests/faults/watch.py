"""What the fault tests look at: mappings of lent memory, and the agent's own figures."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from local_cluster import LocalCluster, process_environments


def worker_pids(job_id: str) -> list[int]:
    """Processes that carry the job's id in their environment: workers, not shims' parents."""
    mark = f"HYPERFRAMES_JOB_ID={job_id}\0".encode()
    return sorted(pid for pid, environment in process_environments() if mark in environment)


def lent_mappings(pids: Iterable[int]) -> int:
    """Bytes of memfd that the processes map."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if "/memfd:" in line:
                first, last = line.split(" ", 1)[0].split("-")
                total += int(last, 16) - int(first, 16)
    return total


def lent_descriptors(pid: int) -> int:
    """Open memfd descriptors of the process."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += "/memfd:" in str(entry.readlink())
        except OSError:
            continue
    return count


def metric(address: str, pattern: str) -> float:
    """The sum of all series of an agent or coordinator whose line starts with `pattern`."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if re.match(pattern, line)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def lent_bytes(cluster: LocalCluster) -> int:
    """What the nodes say they lend, GPUs and host."""
    return sum(
        int(node.get("host_lent_bytes", 0)) + sum(int(gpu["lent_bytes"]) for gpu in node["gpus"])
        for node in cluster.call("ListNodes").get("nodes", [])
    )
