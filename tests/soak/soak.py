"""200 kills of daemons, 200 kills of workers. Adds to docs/benchmarks/soak.json.

    python tests/soak/soak.py --daemon-kills 200 --worker-kills 200

Run through tests/soak/run.sh, which provisions and builds. The first thing that does not hold ends
the run with its error; the file is written only when everything held.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import soak_file
from kills import kill_one_worker, lease_holder_job, submit_between_kills
from local_cluster import LocalCluster, Node

NODES = (Node("a", "2 x 256MiB"), Node("b", "2 x 128MiB"))
SEED = 20


@contextmanager
def fresh_cluster() -> Iterator[LocalCluster]:
    directory = Path(tempfile.mkdtemp(prefix="hf-soak-"))
    with LocalCluster(directory, NODES) as cluster:
        yield cluster
    shutil.rmtree(directory, ignore_errors=True)


def row(name: str, seconds: list[float]) -> dict[str, Any]:
    return {
        "name": name,
        "kills": len(seconds),
        "median_s": round(statistics.median(seconds), 3),
        "worst_s": round(max(seconds), 3),
    }


def progress(what: str, done: int, wanted: int, started: float) -> None:
    if done % 10 == 0 or done == wanted:
        print(f"{what}: {done}/{wanted} in {time.monotonic() - started:.0f} s", flush=True)


def kill_daemons(kills: int) -> dict[str, Any]:
    started, seconds = time.monotonic(), []
    with fresh_cluster() as cluster:
        for value in submit_between_kills(cluster, kills, SEED, agents_too=True):
            seconds.append(value)
            progress("daemons killed", len(seconds), kills, started)
    return row(
        "coordinator and agents: seconds from kill -9 until every node is ALIVE again", seconds
    )


def kill_workers(kills: int) -> dict[str, Any]:
    started, seconds = time.monotonic(), []
    with fresh_cluster() as cluster:
        for number in range(kills):
            seconds.append(kill_one_worker(cluster, lease_holder_job(), number % 2))
            progress("workers killed", len(seconds), kills, started)
    return row("workers: seconds from kill -9 until every leased byte is back", seconds)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--daemon-kills", type=int, default=200)
    parser.add_argument("--worker-kills", type=int, default=200)
    parser.add_argument("--out", type=Path, default=soak_file.DEFAULT)
    args = parser.parse_args(argv)
    args.out.parent.mkdir(parents=True, exist_ok=True)  # Before the kills, not after them.
    rows = []
    commit = soak_file.commit()
    if args.daemon_kills:
        rows.append(kill_daemons(args.daemon_kills))
    if args.worker_kills:
        rows.append(kill_workers(args.worker_kills))
    command = " ".join(["tests/soak/run.sh", *argv])
    soak_file.merge(args.out, "kills", command, commit, rows, {})
    for each in rows:
        print(f"{each['kills']:>4} kills  median {each['median_s']} s  worst {each['worst_s']} s"
              f"  {each['name']}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
