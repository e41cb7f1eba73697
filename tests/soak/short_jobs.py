"""10,000 short jobs: what stays when they have gone. Adds to docs/benchmarks/soak.json.

    tests/soak/run.sh short-jobs --jobs 10000

A bounded number of jobs is in flight; each is one line of shell, and every hundredth is two ranks
that ask for a plan and lease memory. At marks (a tenth, a fifth, a half, all) the cluster is left
to run dry and every daemon is looked at: series and seconds of a scrape, resident memory,
descriptors, threads, bytes on disk. Between the marks it is scraped while it works, which is
reported and not judged: then a scrape waits for the processor like everybody else.

The file is written only when these hold between the marks "fifth" (everything that is kept up to a
number is full by then) and "all": series the same but for ends not met before, memory at most a
tenth larger, as many descriptors and threads but for four, no child process left but for four (a
shim that ends just then), and the 99th percentile of the scrapes under 50 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import soak_file
from kills import lease_holder_job
from local_cluster import Daemon, LocalCluster, Node

NODES = (Node("a", "8 x 64MiB"), Node("b", "8 x 64MiB"))
IN_FLIGHT = 32  # Twice the GPUs: some always wait.
LEASES_EVERY = 100
JOB_LIMIT_S = 120.0
SCRAPES_AT_A_MARK = 100
SCRAPE_LIMIT_MS = 50.0
MEMORY_LIMIT = 1.1
MORE_SERIES = 8  # Codes of calls and ends of leases that the first jobs did not meet.
MORE_DESCRIPTORS = 4


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def scrape(daemon: Daemon) -> tuple[float, int]:
    """Milliseconds, and series."""
    started = time.monotonic()
    with urllib.request.urlopen(f"http://{daemon.ready['http']}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    took = time.monotonic() - started
    return 1e3 * took, sum(1 for line in text.splitlines() if line and line[0] != "#")


def processor_ms(proc: Path) -> float:
    """Of a process so far, all its threads."""
    fields = (proc / "stat").read_text().rsplit(")", 1)[1].split()
    return 1e3 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> int:
    """Those that have ended and were not waited for included."""
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            count += int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid
    return count


def bytes_on_disk(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())


def look_at(name: str, daemon: Daemon, directory: Path, jobs: int) -> dict[str, Any]:
    """A daemon of a cluster in which nothing runs."""
    proc = Path(f"/proc/{daemon.pid}")
    before = processor_ms(proc)
    scrapes = [scrape(daemon) for _ in range(SCRAPES_AT_A_MARK)]
    spent = processor_ms(proc) - before
    status = dict(
        line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
    )
    children = children_of(daemon.pid)
    milliseconds = [took for took, _ in scrapes]
    return {
        "name": f"{name} after {jobs} jobs",
        "daemon": name,
        "jobs": jobs,
        "series": scrapes[-1][1],
        "scrape_p50_ms": round(percentile(milliseconds, 0.5), 2),
        "scrape_p99_ms": round(percentile(milliseconds, 0.99), 2),
        "scrape_processor_ms": round(spent / SCRAPES_AT_A_MARK, 2),
        "rss_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "children": children,
        "disk_mib": round(bytes_on_disk(directory) / 2**20, 2),
    }


@dataclass
class Run:
    cluster: LocalCluster
    jobs: int
    marks: list[int]
    rows: list[dict[str, Any]] = field(default_factory=list)
    scrapes_at_work: list[float] = field(default_factory=list)
    in_flight: deque[str] = field(default_factory=deque)

    def daemons(self) -> list[tuple[str, Daemon, Path]]:
        home = self.cluster.directory
        agents = [
            (f"agent {name}", agent, home / name) for name, agent in self.cluster.agents.items()
        ]
        return [("coordinator", self.cluster.coordinator, home / "state"), *agents]

    def submit(self, number: int) -> None:
        if number % LEASES_EVERY == 0:
            spec = lease_holder_job()
            spec["command"] += ["--once"]
            job = self.cluster.submit(spec)
        else:
            job = str(self.cluster.client.submit(["/bin/sh", "-c", f"echo {number}"])["id"])
        self.in_flight.append(job)

    def wait_for_oldest(self) -> None:
        job = self.cluster.client.wait(self.in_flight.popleft(), timeout_s=JOB_LIMIT_S)
        assert job["state"] == "JOB_STATE_SUCCEEDED", (job["state"], job["message"])

    def go(self) -> None:
        started = time.monotonic()
        for number in range(1, self.jobs + 1):
            if len(self.in_flight) >= IN_FLIGHT:
                self.wait_for_oldest()
            self.submit(number)
            if number % 100 == 0:
                self.scrapes_at_work += [scrape(daemon)[0] for _, daemon, _ in self.daemons()]
            if number in self.marks:
                while self.in_flight:
                    self.wait_for_oldest()
                seconds = time.monotonic() - started
                for name, daemon, directory in self.daemons():
                    self.rows.append(look_at(name, daemon, directory, number))
                    self.rows[-1]["jobs_per_s"] = round(number / seconds, 1)
                    print(f"{seconds:6.0f} s  {self.rows[-1]}", flush=True)

    def verdict(self) -> tuple[dict[str, float], list[str]]:
        """Ratios for the file, and what does not hold."""
        wrong = []
        worst = dict.fromkeys(("series", "rss_mib", "descriptors", "threads"), 0.0)
        for name, _, _ in self.daemons():
            full, last = (
                next(r for r in self.rows if r["daemon"] == name and r["jobs"] == mark)
                for mark in (self.marks[1], self.marks[-1])
            )
            for what in worst:
                worst[what] = max(worst[what], last[what] / full[what])
            limits = {
                "series": full["series"] + MORE_SERIES,
                "rss_mib": MEMORY_LIMIT * full["rss_mib"],
                "descriptors": full["descriptors"] + MORE_DESCRIPTORS,
                "threads": full["threads"] + MORE_DESCRIPTORS,
                "children": MORE_DESCRIPTORS,
                "scrape_p99_ms": SCRAPE_LIMIT_MS,
            }
            wrong += [
                f"{name}: {what} {last[what]} after {last['jobs']} jobs, at most {limit:.1f}"
                for what, limit in limits.items()
                if last[what] > limit
            ]
        ratios = {f"{what}_last_vs_fifth": round(value, 3) for what, value in worst.items()}
        for what in ("scrape_p50_ms", "scrape_p99_ms", "scrape_processor_ms"):
            ratios[what] = max(row[what] for row in self.rows)
        ratios["scrape_p99_ms_at_work"] = round(percentile(self.scrapes_at_work, 0.99), 2)
        return ratios, wrong


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--jobs", type=int, default=10_000, help="a multiple of 100, at least 100")
    parser.add_argument("--out", type=Path, default=soak_file.DEFAULT)
    args = parser.parse_args(argv)
    if args.jobs < 100 or args.jobs % 100:
        parser.error(f"--jobs {args.jobs}: a multiple of 100, at least 100")
    commit = soak_file.commit()
    directory = Path(tempfile.mkdtemp(prefix="hf-soak-"))
    try:
        with LocalCluster(directory, NODES) as cluster:
            run = Run(cluster, args.jobs, [args.jobs // share for share in (10, 5, 2, 1)])
            run.go()
            ratios, wrong = run.verdict()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(ratios)
    for sentence in wrong:
        print(f"does not hold: {sentence}", file=sys.stderr)
    if wrong:
        return 1
    command = " ".join(["tests/soak/run.sh", "short-jobs", *argv])
    soak_file.merge(args.out, "short-jobs", command, commit, run.rows, ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
