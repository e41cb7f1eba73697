"""A cluster on this machine's loopback: one coordinator and agents with simulated GPUs.

What the quick start and the end-to-end tests have in common. Every process is started here, on
ports that the system chose, and stopped by its pid.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import hyperframes as hf

ROOT = Path(__file__).resolve().parents[1]
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
ENDED = {
    "JOB_STATE_SUCCEEDED",
    "JOB_STATE_FAILED",
    "JOB_STATE_CANCELLED",
    "JOB_STATE_TIMEOUT",
    "JOB_STATE_PREEMPTED",
    "JOB_STATE_NO_PROGRESS",
}


def binary(target: str) -> Path:
    """The built program of a Bazel target: "agent:hfagent"."""
    path = ROOT / "bazel-bin" / target.replace(":", "/")
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built; run: bazel build //{target}")
    return path


class Daemon:
    """One hfcoordinator or hfagent. Keeps the ports of its first start."""

    def __init__(
        self,
        target: str,
        flags: dict[str, str],
        log: Path,
        programs: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.program = programs / target.split(":")[1] if programs else binary(target)
        self.flags = flags
        self.environment = environment or {}
        self.log = log
        self.ready: dict[str, str] = {}  # grpc, http, and for an agent node and socket.
        self.process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.program.name} was never started"
        return self.process.pid

    def start(self) -> None:
        """Returns once the ready line was read. RuntimeError has the end of the log otherwise."""
        command = [str(self.program)]
        command += [f"--{name}={value}" for name, value in self.flags.items()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is ours to handle, in order.
            )
        line = self._ready_line()
        self.ready = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.flags["listen-address"] = self.ready["grpc"]
        self.flags["http-address"] = self.ready["http"]

    def _ready_line(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_TIMEOUT_S)
        line = self.process.stdout.readline() if readable else ""
        if line.startswith(f"{self.program.name} ready:"):
            return line
        self.stop()
        said = self.log.read_text(errors="replace")[-2000:]
        raise RuntimeError(
            f"{self.program.name} did not become ready (status {self.process.returncode}, said"
            f" {line!r}):\n{said}"
        )

    def kill(self) -> None:
        """kill -9, and collect it."""
        assert self.process is not None
        self.process.kill()
        self._collect()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after STOP_TIMEOUT_S. Safe when it has ended already."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._collect()

    def _collect(self) -> None:
        assert self.process is not None
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Node:
    """An agent to start, and what it simulates."""

    name: str
    gpus: str  # "2 x 1GiB"
    flags: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # Beside this process's.


class LocalCluster:
    """A coordinator and its agents, for a `with` statement. Stops jobs, then daemons.

    Args:
        directory: state, sockets and logs; short, because unix sockets allow 107 bytes of path.
        nodes: one agent each.
        coordinator_flags: added to the coordinator's own.
        programs: the folder with the daemons; without it those that Bazel built here.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[Node],
        coordinator_flags: dict[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        self.directory = directory
        self._programs = programs
        self._nodes = list(nodes)
        self.coordinator = Daemon(
            "coordinator:hfcoordinator",
            {
                "listen-address": "127.0.0.1:0",
                "http-address": "127.0.0.1:0",
                "state-directory": str(directory / "state"),
                **(coordinator_flags or {}),
            },
            directory / "coordinator.log",
            programs,
        )
        self.agents: dict[str, Daemon] = {}
        self._client: hf.Client | None = None

    def __enter__(self) -> LocalCluster:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.coordinator.start()
            for node in self._nodes:
                self.add_agent(node)
            self.wait_for_nodes(len(self._nodes))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return self.coordinator.ready["grpc"]

    def add_agent(self, node: Node) -> Daemon:
        agent = Daemon(
            "agent:hfagent",
            {
                "node": node.name,
                "coordinator": self.address,
                "listen-address": "127.0.0.1:0",
                "http-address": "127.0.0.1:0",
                "run-directory": str(self.directory / node.name),
                "simulated-gpus": node.gpus,
                **node.flags,
            },
            self.directory / f"agent-{node.name}.log",
            self._programs,
            node.environment,
        )
        self.agents[node.name] = agent
        agent.start()
        return agent

    @property
    def client(self) -> hf.Client:
        """The client library, as any user has it."""
        if self._client is None:
            self._client = hf.Client(self.address)
        return self._client

    def call(
        self, method: str, request: dict[str, Any] | None = None, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """One call of coordinator.proto through the client library, JSON in and out."""
        return self.client.call(method, request or {}, timeout_s)

    def wait_for_nodes(self, count: int, timeout_s: float = 15.0) -> None:
        """Until `count` nodes are ALIVE."""

        def alive() -> bool:
            nodes = self.client.nodes()
            return [node["state"] for node in nodes].count("NODE_STATE_ALIVE") == count

        wait_until(alive, timeout_s, f"{count} nodes to be ALIVE")

    def leases(self) -> list[tuple[str, str, str, int]]:
        """(lease, job, device, bytes) of every lease that a node holds, sorted."""
        return sorted(
            (lease["lease_id"], lease["job_id"], lease["device"], int(lease["bytes"]))
            for node in self.client.nodes()
            for lease in node.get("leases", [])
            if lease["state"] != "LEASE_STATE_RELEASED"
        )

    def submit(self, spec: dict[str, Any]) -> str:
        """Queues a job and returns its id."""
        return str(self.call("SubmitJob", {"spec": spec})["job"]["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return self.client.get(job_id)

    def read_log(self, job_id: str, rank: int, offset: int = 0) -> tuple[bytes, int, bool]:
        """Bytes from `offset`, the next offset, and whether nothing follows it."""
        answer = self.call("ReadLog", {"job_id": job_id, "rank": rank, "offset": offset})
        return (
            base64.b64decode(answer["data"]),
            int(answer["next_offset"]),
            bool(answer["complete"]),
        )

    def whole_log(self, job_id: str, rank: int) -> str:
        """Everything that the rank has written so far."""
        return b"".join(self.client.logs(job_id, rank=rank)).decode(errors="replace")

    def wait_job(
        self,
        job_id: str,
        timeout_s: float,
        on_line: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """The job once it has ended; meanwhile hands rank 0's complete log lines to `on_line`.

        Raises:
            TimeoutError: it has not; the message has its state and message.
        """
        deadline = time.monotonic() + timeout_s
        offset, partial, version, attempt = 0, b"", 0, 0
        while True:
            job = self.call("WatchJob", {"id": job_id, "after_version": version, "wait_s": 0.3})
            version = int(job["version"])
            if int(job.get("attempt", 0)) != attempt:  # Each attempt has a log of its own.
                offset, partial, attempt = 0, b"", int(job["attempt"])
            if on_line is not None and job.get("workers"):
                offset, partial = self._pass_on(job_id, offset, partial, on_line)
            if job["state"] in ENDED:
                return job
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"job {job_id} is still {job['state']} after {timeout_s:.0f} s:"
                    f" {job['reason']} {job['message']}"
                )

    def _pass_on(
        self, job_id: str, offset: int, partial: bytes, on_line: Callable[[str], None]
    ) -> tuple[int, bytes]:
        # A log that cannot be asked for just now (its agent restarts) is asked for again later.
        with contextlib.suppress(RuntimeError):
            data, offset, _ = self.read_log(job_id, 0, offset)
            *lines, partial = (partial + data).split(b"\n")
            for line in lines:
                on_line(line.decode(errors="replace"))
        return offset, partial

    def stop(self) -> None:
        """Cancels what runs, stops agents and coordinator, ends workers that are still there."""
        if self.coordinator.process is not None and self.coordinator.process.poll() is None:
            with contextlib.suppress(Exception):
                self._cancel_all()
        for agent in self.agents.values():
            agent.stop()
        self.coordinator.stop()
        for pid in self.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _cancel_all(self) -> None:
        running = [job["id"] for job in self.client.jobs() if job["state"] not in ENDED]
        for job_id in running:
            with contextlib.suppress(RuntimeError):
                self.client.cancel(job_id)
        for job_id in running:
            self.wait_job(job_id, STOP_TIMEOUT_S)

    def worker_pids(self) -> list[int]:
        """Processes of this cluster's jobs and their shims, known by their environment."""
        marks = [f"{self.directory}/{node.name}".encode() for node in self._nodes]
        return [
            pid
            for pid, environment in process_environments()
            if pid != os.getpid() and any(mark in environment for mark in marks)
        ]


def process_environments() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "environ").read_bytes()


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, interval_s: float = 0.02
) -> float:
    """Polls until `condition` holds and returns the seconds it took.

    Raises:
        TimeoutError: names `what`.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise TimeoutError(f"waited {timeout_s:.1f} s in vain for {what}")
        time.sleep(interval_s)
    return time.monotonic() - started
