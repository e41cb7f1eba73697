"""What the quick start kills, and what has to come of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from local_cluster import LocalCluster, binary, wait_until
from quickstart_job import (
    JOB_TIMEOUT_S,
    WORLD,
    BrokenPromiseError,
    finish,
    job_spec,
    say,
    say_checks,
    steps_logged,
)
from summary import MIB, RunSummary

KILL_AFTER_STEPS = 2
SAVE_EVERY = 2


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
    cluster.wait_for_nodes(len(cluster.agents))
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
    say_checks(checks, "the killed agent was noticed by the job")


def _hfctl_checkpoints(cluster: LocalCluster, job_id: str, *more: str) -> str:
    command = [
        str(binary("client/cli:hfctl")), "--coordinator", cluster.address,
        "checkpoints", "--job", job_id, *more,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def committed(cluster: LocalCluster, job_id: str) -> bool:
    """Whether the job has a checkpoint to go on from."""
    return "CHECKPOINT_STATE_COMMITTED" in _hfctl_checkpoints(cluster, job_id, "-o", "json")


def survive_worker(
    cluster: LocalCluster, reference: RunSummary, results: Path, steps: int, extra: Sequence[str]
) -> None:
    """kill -9 a worker in the middle: the job goes on from its last checkpoint, bit for bit."""
    report = results / "worker-killed-{rank}.json"
    folder = results / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)  # An earlier start's: it would be resumed.
    saving = ["--checkpoints", str(folder), "--save-every", str(SAVE_EVERY)]
    job_id = cluster.submit(
        job_spec("hyperframes", report, steps, [*extra, *saving], max_restarts=1)
    )
    kill_after = SAVE_EVERY + 1
    say(
        f"==> Training with a checkpoint every {SAVE_EVERY} steps: job {job_id}; a worker is killed"
        f" in step {kill_after + 1}"
    )
    wait_until(
        lambda: len(steps_logged(cluster, job_id, 1)) >= kill_after and committed(cluster, job_id),
        JOB_TIMEOUT_S,
        f"step {kill_after} of job {job_id} and a checkpoint",
        interval_s=0.05,
    )
    victim = int(cluster.job(job_id)["workers"][1]["report"]["pid"])
    os.kill(victim, signal.SIGKILL)
    say(f"    kill -9 {victim} (rank 1)")
    run = finish(cluster, job_id, report)
    job = cluster.job(job_id)
    resumed = int(steps_logged(cluster, job_id, 0)[0].split("/")[0]) - 1
    say(f"    restarted {job.get('restarts', 0)} time; went on after step {resumed}; hfctl shows")
    for line in _hfctl_checkpoints(cluster, job_id).splitlines():
        say(f"      {line}")
    say("    step   loss, undisturbed     loss, killed and resumed")
    for step, (calm, other) in enumerate(zip(reference.losses, run.losses, strict=True), 1):
        say(f"    {step:4d}   {calm:<18.12f}    {other:<18.12f}{' resumed' * (step > resumed)}")
    checks = {
        "it went on from a checkpoint, not from the start": resumed > 0,
        "every loss and gradient as in the undisturbed run": (
            run.fingerprint == reference.fingerprint
        ),
    }
    say_checks(checks, "the resumed run differs from one that was never stopped")
