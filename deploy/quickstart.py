"""The main job on a cluster of this machine: three modes, one table, one picture, one killed agent.

Called by deploy/quickstart.sh, which has installed and built what is needed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local_cluster import ROOT, LocalCluster, Node, binary, wait_until
from report import page
from summary import MIB, RunSummary, equal_to_reference, load_run, table_text

WORLD = 2
# One rank a node; each borrows from the other GPU of its node. Node b's GPUs are half the size.
NODES = (Node("a", "2 x 1GiB"), Node("b", "2 x 512MiB"))
BUDGET_SHARE = 0.4
JOB_TIMEOUT_S = 240.0
KILL_AFTER_STEPS = 2
# Lets malloc give freed tensors back at once, so that the process's own memory can be read from
# /proc while it runs; the same in every mode.
MALLOC_MMAP_THRESHOLD = str(256 * 1024)


class BrokenPromiseError(Exception):
    """Something that the quick start promises did not hold."""


def say(text: str) -> None:
    print(text, flush=True)


def job_spec(mode: str, report: Path, steps: int, extra: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": f"gpt-{mode}",
        "command": [
            sys.executable, "examples/train_gpt.py", "--mode", mode, "--steps", str(steps),
            "--report", str(report), "--profile-memory-step", str(steps - 1), *extra,
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
    }  # fmt: skip


def show_progress(line: str) -> None:
    if line.startswith("step "):
        say(f"    {line}")


def finish(cluster: LocalCluster, job_id: str, report: Path) -> RunSummary:
    """Waits for the job and reads its reports."""
    job = cluster.wait_job(job_id, JOB_TIMEOUT_S, show_progress)
    if job["state"] != "JOB_STATE_SUCCEEDED":
        logs = "\n".join(cluster.whole_log(job_id, rank)[-1500:] for rank in range(WORLD))
        raise BrokenPromiseError(f"job {job_id} ended as {job['state']}: {job['message']}\n{logs}")
    return load_run(report, WORLD)


def run_mode(
    cluster: LocalCluster, mode: str, results: Path, steps: int, extra: Sequence[str] = ()
) -> RunSummary:
    started = time.monotonic()
    report = results / f"{mode}-{{rank}}.json"
    job_id = cluster.submit(job_spec(mode, report, steps, extra))
    say(f"==> Training with {mode}: job {job_id}, {WORLD} ranks, {steps} steps")
    run = finish(cluster, job_id, report)
    say(f"    done in {time.monotonic() - started:.0f} s")
    return run


def steps_logged(cluster: LocalCluster, job_id: str, rank: int) -> list[str]:
    lines = cluster.whole_log(job_id, rank).splitlines()
    return [line.split(" ")[1] for line in lines if line.startswith("step ")]


def leases_by_hfctl(cluster: LocalCluster) -> dict[str, list[str]]:
    """The leases on each node, one line each, as an operator sees them."""
    done = subprocess.run(
        [binary("client/cli:hfctl"), "--coordinator", cluster.address, "nodes", "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        node["node"]: sorted(
            f"lease {lease['lease_id']} of {lease['job_id']} rank {lease['rank']}: "
            f"{int(lease['bytes']) / MIB:.1f} MiB on {lease['device']}"
            for lease in node["leases"]
            if lease["state"] != "LEASE_STATE_RELEASED"
        )
        for node in json.loads(done.stdout)["nodes"]
    }


def survive_agent(
    cluster: LocalCluster, reference: RunSummary, results: Path, steps: int, extra: Sequence[str]
) -> None:
    """kill -9 an agent while a job trains: same losses, whole logs, same leases."""
    report = results / "agent-killed-{rank}.json"
    job_id = cluster.submit(job_spec("hyperframes", report, steps, extra))
    say(f"==> Training once more: job {job_id}; an agent is killed in step {KILL_AFTER_STEPS + 1}")
    wait_until(
        lambda: len(steps_logged(cluster, job_id, 1)) >= KILL_AFTER_STEPS,
        JOB_TIMEOUT_S,
        f"step {KILL_AFTER_STEPS} of job {job_id}",
        interval_s=0.1,
    )
    before = leases_by_hfctl(cluster)
    # The agent with the most to lose: one without leases would have nothing to take over.
    node = max(before, key=lambda name: len(before[name]))
    if not before[node]:
        raise BrokenPromiseError(
            f"job {job_id} trains without a lease, so no agent has any to lose"
        )
    agent = cluster.agents[node]
    killed = agent.pid
    agent.kill()
    say(f"    kill -9 {killed} (agent of node {node}, which lends {len(before[node])} leases)")
    agent.start()
    cluster.wait_for_nodes(len(NODES))
    after = leases_by_hfctl(cluster)
    say(f"    agent {node} is back as pid {agent.pid}; hfctl shows")
    for lease in (lease for leases in after.values() for lease in leases):
        say(f"      {lease}")
    run = finish(cluster, job_id, report)
    expected = [f"{step + 1}/{steps}" for step in range(steps)]
    checks = {
        "the same leases before and after": before == after,
        "losses and gradients as in the undisturbed run": run.fingerprint == reference.fingerprint,
        "every line of both logs": all(
            steps_logged(cluster, job_id, rank) == expected for rank in range(WORLD)
        ),
        "no worker restarted": all(
            worker["report"]["worker_id"].split("-")[-2] in ("0", "1")
            for worker in cluster.job(job_id)["workers"]
        ),
    }
    for what, held in checks.items():
        say(f"    {'yes' if held else 'NO '}  {what}")
    if not all(checks.values()):
        raise BrokenPromiseError("the killed agent was noticed by the job")


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


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=6, help="steps of each run")
    parser.add_argument(
        "--results", type=Path, required=True, help="folder for reports and picture"
    )
    args = parser.parse_args(argv)
    args.results.mkdir(parents=True, exist_ok=True)
    # So that SIGTERM, like Ctrl-C, leaves through the cluster's own end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="hyperframes-"))
    try:
        say("==> Starting one coordinator and two agents")
        with LocalCluster(directory, NODES) as cluster:
            say(f"    coordinator {cluster.address}; nodes a (2 x 1 GiB) and b (2 x 512 MiB)")
            runs = [run_mode(cluster, "nothing", args.results, args.steps)]
            runs.append(run_mode(cluster, "checkpointing", args.results, args.steps))
            budget = int(BUDGET_SHARE * min(runs[0].activation_peaks))
            extra = ["--activation-budget", str(budget)]
            runs.append(run_mode(cluster, "hyperframes", args.results, args.steps, extra))
            picture = args.results / "memory.html"
            picture.write_text(page(runs))
            say("\n" + table_text(runs) + "\n")
            check(runs)
            say(f"Memory over one step in the three modes: {picture}")
            survive_agent(cluster, runs[-1], args.results, args.steps, extra)
    except (BrokenPromiseError, RuntimeError, TimeoutError) as error:
        print(f"quickstart failed: {error}", file=sys.stderr)
        print(f"logs of the daemons are in {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    say(f"All of it held. {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
