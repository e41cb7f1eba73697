"""The main job on a cluster of this machine: three modes, one table, one picture, then what is
killed (an agent, a worker) and what a Prometheus saw of all of it.

Called by deploy/quickstart.sh, which has installed and built what is needed.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from local_cluster import LocalCluster, Node
from local_prometheus import Prometheus
from quickstart_job import BrokenPromiseError, run_mode, say
from quickstart_kills import survive_agent, survive_worker
from quickstart_metrics import show_metrics
from report import page
from summary import MIB, RunSummary, equal_to_reference, table_text

# One rank a node; each borrows from the other GPU of its node. Node b's GPUs are half the size.
NODES = (Node("a", "2 x 1GiB"), Node("b", "2 x 512MiB"))
BUDGET_SHARE = 0.4


def check(runs: Sequence[RunSummary]) -> None:
    """What the table has to show, or the quick start has failed."""
    for run in runs:
        if not equal_to_reference(run, runs):
            raise BrokenPromiseError(
                f"{run.mode}: losses or gradients differ from the run with nothing"
            )
    framed = runs[-1]
    if framed.budget is None or max(framed.activation_peaks) > framed.budget:
        raise BrokenPromiseError(
            f"peak activations {framed.activation_peaks} are over the budget {framed.budget}"
        )
    saved = runs[0].activation_peaks[0] - framed.activation_peaks[0]
    own = runs[0].own_memory_peaks[0] - framed.own_memory_peaks[0]
    say(
        f"HyperFrames held {saved / MIB:.0f} MiB fewer activations; the process's own memory peak"
        f" fell by {own / MIB:.0f} MiB."
    )


def show(cluster: LocalCluster, prometheus: Prometheus, results: Path, steps: int) -> None:
    """All that the quick start shows, in order. BrokenPromiseError: what did not hold."""
    began = time.time()
    runs = [run_mode(cluster, mode, results, steps) for mode in ("nothing", "checkpointing")]
    extra = ["--activation-budget", str(int(BUDGET_SHARE * min(runs[0].activation_peaks)))]
    runs.append(run_mode(cluster, "hyperframes", results, steps, extra))
    picture = results / "memory.html"
    picture.write_text(page(runs))
    say("\n" + table_text(runs) + "\n")
    check(runs)
    say(f"Memory over one step in the three modes: {picture}")
    survive_agent(cluster, runs[-1], results, steps, extra)
    survive_worker(cluster, runs[-1], results, steps, extra)
    show_metrics(prometheus, began, results / "dashboard.svg")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=6, help="steps of each run; at least 5")
    parser.add_argument(
        "--results", type=Path, required=True, help="folder for reports and pictures"
    )
    args = parser.parse_args(argv)
    if args.steps < 5:
        parser.error(f"--steps is {args.steps}; the kills need at least 5")
    args.results.mkdir(parents=True, exist_ok=True)
    # So that SIGTERM, like Ctrl-C, leaves through the cluster's own end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="hyperframes-"))
    try:
        say("==> Starting one coordinator, two agents, and a Prometheus that watches them")
        with (
            LocalCluster(directory / "c", NODES) as cluster,
            Prometheus(directory / "p", cluster) as prometheus,
        ):
            say(f"    coordinator {cluster.address}; nodes a (2 x 1 GiB) and b (2 x 512 MiB)")
            show(cluster, prometheus, args.results, args.steps)
    except (BrokenPromiseError, RuntimeError, TimeoutError) as error:
        print(f"quickstart failed: {error}", file=sys.stderr)
        print(f"logs of the daemons are in {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    say(f"All of it held. {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
