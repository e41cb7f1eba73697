#!/usr/bin/env python3
"""A coordinator and an agent on this machine's real GPUs: one GPU trains, the others lend.

    export PYTHONPATH=client/python:deploy:tests
    python tests/gpus/cluster_on_gpus.py              # with one GPU: host memory alone lends
    python tests/gpus/cluster_on_gpus.py --simulated  # how this program itself is tried out

Trains a small GPT as a job, bit-equal with HYPERFRAMES_MODE=off, through leases on a GPU that the
worker does not see; kills the agent in the middle, and the worker, and holds what NVML counts
against what it counted before. Prints a line per check; exits with 1 when one fails.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from gpus import twin
from gpus.nvml import Nvml
from local_cluster import ENDED, ROOT, LocalCluster, Node, wait_until

PATIENCE_S = 90.0
BACK_WITHIN_S = 2.0
READY_WITHIN_S = 3.0
SMALL = ["--layers=3", "--hidden=32", "--heads=4", "--length=64", "--batch=2", "--vocabulary=256"]


class Checks:
    def __init__(self) -> None:
        self.failed = 0
        self._begin = time.monotonic()

    def __call__(self, name: str, holds: bool, detail: object = "") -> bool:
        self.failed += not holds
        at = time.monotonic() - self._begin
        print(f"{at:6.1f} s  {'ok    ' if holds else 'FAILED'}  {name}: {detail}", flush=True)
        return holds


class Trial:
    """One cluster, and what was there before it."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.simulated = bool(arguments.simulated)
        self.steps = int(arguments.steps)
        self.directory = directory
        self.check = Checks()
        self.nvml = None if self.simulated else Nvml()
        self.before = self.used()
        self.tier = "peer" if self.simulated or len(self.before) > 1 else "host"
        gpus = "2 x 256MiB" if self.simulated else ""
        self.cluster = LocalCluster(directory, [Node("n", gpus, {"host-bytes": arguments.host})])

    # What can be seen from outside.

    def used(self) -> dict[str, int]:
        return self.nvml.used() if self.nvml is not None else {}

    def beyond_before(self) -> dict[str, int]:
        return {uuid: used - self.before[uuid] for uuid, used in self.used().items()}

    def status(self) -> dict[str, Any]:
        address = self.cluster.agents["n"].ready["http"]
        with urllib.request.urlopen(f"http://{address}/statusz", timeout=5) as page:
            return dict(json.load(page))

    def lent(self) -> dict[str, int]:
        return {d["uuid"]: d["lent_bytes"] for d in self.status()["devices"] if d["lent_bytes"]}

    def check_all_back(self, after: str, since: float) -> None:
        """Every byte that was free before is free again within BACK_WITHIN_S of `since`."""
        if self.nvml is None:
            return
        seconds = None
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not any(self.beyond_before().values()), 8.0, "bytes", 0.005)
            seconds = time.monotonic() - since
        good = seconds is not None and seconds <= BACK_WITHIN_S
        detail = f"after {seconds:.2f} s" if seconds is not None else self.beyond_before()
        self.check(f"NVML's used bytes are as before {after}", good, detail)

    # Jobs.

    def only(self, tier: str) -> list[str]:
        return [f"--forbid={word}" for word in ("peer", "host", "recompute") if word != tier]

    def submit(self, name: str, *extra: str, off: bool = False, steps: int | None = None) -> str:
        report = self.directory / f"{name}.json"
        environment = {"PYTHONPATH": f"{ROOT / 'client/python'}:{ROOT / 'tests'}"}
        if self.simulated:
            environment["OMP_NUM_THREADS"] = "1"
        command = [
            *([] if self.simulated else twin.words()),
            *(["env", "HYPERFRAMES_MODE=off"] if off else []),
            sys.executable, str(ROOT / "tests/gpus/gpu_worker.py"), f"--report={report}",
            f"--steps={steps or self.steps}", *(SMALL if self.simulated else []), *extra,
        ]  # fmt: skip
        spec = {"name": name, "command": command, "env": environment, "ranks": 1}
        return self.cluster.submit({**spec, "working_directory": str(ROOT)})

    def finish(self, name: str, job_id: str) -> dict[str, Any]:
        """The report of a job that has to succeed."""
        job = self.cluster.wait_job(job_id, PATIENCE_S)
        if not self.check(f"job {name} succeeds", job["state"] == "JOB_STATE_SUCCEEDED"):
            print(job["message"], self.cluster.whole_log(job_id, 0)[-3000:], flush=True)
            return {}
        return dict(json.loads((self.directory / f"{name}.json").read_text()))

    def wait_for_step(self, job_id: str, step: int) -> None:
        mark = f"step {step}/"

        def there() -> bool:
            job = self.cluster.job(job_id)
            log = ""
            with contextlib.suppress(RuntimeError):  # Not there yet.
                log = self.cluster.whole_log(job_id, 0)
            if mark not in log and job["state"] in ENDED:
                raise RuntimeError(f"{job_id} {job['state']}: {job['message']}\n{log[-3000:]}")
            return mark in log

        wait_until(there, PATIENCE_S, f"{mark} of {job_id}", 0.02)

    def worker_pid(self, job_id: str) -> int:
        return int(self.cluster.job(job_id)["workers"][0]["report"]["pid"])

    def check_equal(self, name: str, seen: dict[str, Any], reference: dict[str, Any]) -> None:
        same = [
            key for key in ("losses", "gradients", "weights") if seen.get(key) == reference.get(key)
        ]
        detail = f"{len(reference.get('losses', []))} losses, last gradients and weights"
        good = len(same) == 3
        self.check(
            f"job {name} is bit-equal to HYPERFRAMES_MODE=off", good, detail if good else same
        )


def check_start(trial: Trial) -> None:
    """The agent is ready at once, holds nothing, and knows its links after a while."""
    agent = trial.cluster.agents["n"]
    agent.kill()
    begin = time.monotonic()
    agent.start()
    seconds = time.monotonic() - begin
    trial.check("the agent is ready", seconds < READY_WITHIN_S, f"{seconds:.2f} s")
    wait_until(lambda: trial.status()["links"]["done"], PATIENCE_S, "the links", 0.05)
    measured = {
        f"{link['from']}>{link['to']}": (
            f"{link['kind']} {link['bytes_per_second'] / 1e9:.1f} GB/s "
            f"{link['latency_s'] * 1e6:.0f} us"
        )
        for link in trial.status()["links"]["measured"]
    }
    unmeasured = trial.status()["links"]["unmeasured"]
    count = len([device for device in trial.status()["devices"]])  # GPUs and the host.
    expected = (count - 1) * (count - 2) + 2 * (count - 1)
    good = not unmeasured and len(measured) == expected
    trial.check("every link is measured", good, measured if good else (measured, unmeasured))
    backend = trial.status()["backend"]
    trial.check("backend", backend == ("host" if trial.simulated else "cuda"), backend)
    print(f"          networks: {trial.status()['networks']}", flush=True)
    trial.check_all_back("with an idle agent", time.monotonic())

    def known() -> bool:
        return trial.cluster.client.nodes()[0].get("links", []) != []

    wait_until(known, 10, "the coordinator to know the links", 0.05)


def check_agent_killed(trial: Trial, reference: dict[str, Any]) -> None:
    """A job that borrows from the hidden GPU; its agent is killed and comes back in the middle."""
    tier = trial.tier
    job_id = trial.submit(tier, *trial.only(tier))
    trial.wait_for_step(job_id, trial.steps // 4)
    pid, leases, lent = trial.worker_pid(job_id), trial.cluster.leases(), trial.lent()
    trial.check("leases are held", bool(leases), lent)
    agent = trial.cluster.agents["n"]
    killed_at = time.time()
    agent.kill()
    time.sleep(0.5)  # Long enough for steps without an agent.
    restarted_at = time.time()
    agent.start()
    adopted = None
    with contextlib.suppress(TimeoutError):
        adopted = wait_until(lambda: trial.lent() == lent and not _awaiting(trial), 10, "adoption")
    running = trial.cluster.job(job_id)["state"] not in ENDED
    trial.check("the restarted agent adopts them", adopted is not None and running, trial.lent())
    trial.check("and the worker", trial.worker_pid(job_id) == pid, f"process {pid}")
    trial.cluster.wait_for_nodes(1)
    trial.check("the same leases are held", trial.cluster.leases() == leases, len(leases))
    measured = trial.status()["links"]
    trial.check("links are remembered", measured["done"] and bool(measured["measured"]))
    seen = trial.finish(tier, job_id)
    ended = time.monotonic()
    if not seen:
        return
    without = [at for at in seen["ended"] if killed_at < at < restarted_at]
    trial.check("steps go on without an agent", len(without) > 0, f"{len(without)} steps")
    trial.check_equal(tier, seen, reference)
    engine = seen["stats"]["engine"]
    moved = {tier: int(b) // 2**20 for tier, b in engine["bytes_out"].items()}
    spilled = [engine["overflow_to_host"], engine["overflow_to_keep"]]
    trial.check(f"frames went to {tier}", moved[tier] > 0 and spilled == [0, 0], f"{moved} MiB")
    if tier == "peer" and not trial.simulated:
        own = seen["environment"]["HYPERFRAMES_GPU"]
        alone = seen["environment"]["CUDA_VISIBLE_DEVICES"] == own and seen["visible"] == 1
        trial.check("the lender is hidden from the worker", alone and own not in lent, own)
    wait_until(lambda: trial.cluster.leases() == [], 10, "the leases to end")
    trial.check_all_back("after the job", ended)


def _awaiting(trial: Trial) -> bool:
    return any(device["awaiting_workers"] for device in trial.status()["devices"])


def check_host_leases(trial: Trial, reference: dict[str, Any]) -> None:
    job_id = trial.submit("host", *trial.only("host"))
    seen = trial.finish("host", job_id)
    if not seen:
        return
    trial.check_equal("host", seen, reference)
    moved = {tier: int(b) // 2**20 for tier, b in seen["stats"]["engine"]["bytes_out"].items()}
    trial.check("frames went to host memory", moved["host"] > 0, f"{moved} MiB")


def check_worker_killed(trial: Trial, agent_away: bool) -> None:
    """SIGKILL to the worker: every byte is back, also where no agent watched."""
    name = "orphan" if agent_away else "killed"
    job_id = trial.submit(name, *trial.only(trial.tier), steps=100000)
    trial.wait_for_step(job_id, 5)
    pid, lent = trial.worker_pid(job_id), trial.lent()
    beyond = trial.beyond_before()
    holds = all(beyond.get(uuid, lent[uuid]) >= lent[uuid] for uuid in lent) and bool(lent)
    trial.check("leases are held, and NVML counts them", holds, (lent, beyond))
    agent = trial.cluster.agents["n"]
    if agent_away:
        agent.kill()
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    what = "after kill -9 of a worker"
    trial.check_all_back(f"{what} while no agent runs" if agent_away else what, killed)
    if agent_away:
        agent.start()
    seconds = wait_until(lambda: trial.lent() == {}, 20, "the leases to end")
    trial.check("its leases have ended", True, f"{seconds:.2f} s later")
    job = trial.cluster.wait_job(job_id, 30)
    trial.check("the job says why", job["state"] == "JOB_STATE_FAILED", job["message"][:150])
    if agent_away:
        trial.check_all_back("with the agent that came after", time.monotonic())


def run(trial: Trial) -> int:
    with trial.cluster:
        check_start(trial)
        reference = trial.finish("off", trial.submit("off", off=True))
        if reference:
            check_agent_killed(trial, reference)
            if trial.tier == "peer":
                check_host_leases(trial, reference)
            else:
                print("skipped: a GPU that lends, for there is one GPU", flush=True)
            check_worker_killed(trial, agent_away=False)
            check_worker_killed(trial, agent_away=True)
    trial.check_all_back("when all daemons are gone", time.monotonic())
    return trial.check.failed


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--host", default="4GiB", help="host memory that the agent lends")
    parser.add_argument("--patience", type=float, default=280.0, help="seconds for all of it")
    arguments = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(arguments.patience, exit=True)
    directory = Path(tempfile.mkdtemp(prefix="hf-"))
    try:
        try:
            trial = Trial(arguments, directory)
        except OSError as error:
            raise SystemExit(f"needs a GPU and NVML: {error}") from None
        failed = run(trial)
        print(f"{failed} failed", flush=True)
        if failed:
            for log in sorted(directory.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}", flush=True)
        return 1 if failed else 0
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
