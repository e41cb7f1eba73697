"""Jobs of a cluster, from Python: submit, look, follow, wait, cancel."""

from __future__ import annotations

import base64
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._native import NativeClient
from .errors import DeadlineExceeded, InvalidArgument

_ENDED = frozenset(
    f"JOB_STATE_{word}"
    for word in ("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NO_PROGRESS")
)
_LONGEST_WATCH_S = 20.0
_LOG_PAUSE_S = 0.3


def _name_after(command: Sequence[str]) -> str:
    program = os.path.basename(command[0]) if command else ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", program)[:63] or "job"


class Client:
    """The coordinator's jobs. Jobs are dicts as the Job message of the wire.

    Args:
        address: host:port; without it HYPERFRAMES_COORDINATOR.
        timeout_s: of one call.
    """

    def __init__(self, address: str | None = None, *, timeout_s: float = 10.0) -> None:
        chosen = address or os.environ.get("HYPERFRAMES_COORDINATOR")
        if not chosen:
            raise InvalidArgument("Give Client an address, or set HYPERFRAMES_COORDINATOR.")
        self._timeout_s = timeout_s
        self._native = NativeClient(chosen, {"timeout_s": timeout_s})

    def call(
        self, method: str, request: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Any method of the coordinator, request and answer as JSON values."""
        return self._native.call(method, dict(request), timeout_s or self._timeout_s)

    def submit(
        self,
        command: Sequence[str],
        *,
        ranks: int = 1,
        name: str = "",
        env: Mapping[str, str] | None = None,
        working_directory: str = "",
        spread: bool = False,
        **spec: Any,
    ) -> dict[str, Any]:
        """Queues a job; the answer is its Job. Without a name it is called after its program.
        ``spec``: further fields of JobSpec.

        Raises:
            InvalidArgument: names the field.
            Unavailable: the coordinator cannot be reached.
        """
        request = {
            "version": {"major": 1, "minor": 0},
            "idempotency_key": uuid.uuid4().hex,
            "spec": {
                "name": name or _name_after(command),
                "command": list(command),
                "env": dict(env or {}),
                "working_directory": working_directory,
                "ranks": ranks,
                "placement": "PLACEMENT_SPREAD" if spread else "PLACEMENT_PACK",
                **spec,
            },
        }
        return dict(self.call("SubmitJob", request)["job"])

    def get(self, job_id: str) -> dict[str, Any]:
        """NotFound: no such job."""
        return self.call("GetJob", {"id": job_id})

    def jobs(self, limit: int = 100) -> list[dict[str, Any]]:
        """Newest first."""
        return list(self.call("ListJobs", {"limit": limit}).get("jobs", ()))

    def nodes(self) -> list[dict[str, Any]]:
        """Nodes by name."""
        answer = self.call("ListNodes", {"version": {"major": 1, "minor": 0}})
        return list(answer.get("nodes", ()))

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Idempotent."""
        return self.call("CancelJob", {"id": job_id})

    def preempt(self, job_id: str) -> dict[str, Any]:
        """Gives its GPUs to something else: it saves within its grace and ends. Idempotent."""
        return self.call("PreemptJob", {"id": job_id})

    def wait(self, job_id: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The job once it has ended. DeadlineExceeded: it had not after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        job = self.get(job_id)
        while job.get("state") not in _ENDED:
            left = _LONGEST_WATCH_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(
                    f"Job {job_id} was {job.get('state')} after {timeout_s} s: "
                    f"{job.get('message', '')}"
                )
            wait_s = min(left, _LONGEST_WATCH_S)
            request = {"id": job_id, "after_version": job.get("version", 0), "wait_s": wait_s}
            job = self.call("WatchJob", request, wait_s + self._timeout_s)
        return job

    def logs(
        self, job_id: str, *, rank: int = 0, follow: bool = False, attempt: int = 0
    ) -> Iterator[bytes]:
        """The rank's output; ``follow``: until the worker has ended; attempt 0: the newest."""
        request: dict[str, Any] = {"job_id": job_id, "rank": rank, "attempt": attempt}
        offset = 0
        while True:
            answer = self.call("ReadLog", {**request, "offset": offset})
            data = base64.b64decode(answer.get("data", ""))
            if data:
                yield data
            offset = int(answer.get("next_offset", offset))
            if answer.get("complete") or (not data and not follow):
                return
            if not data:
                time.sleep(_LOG_PAUSE_S)

    def close(self) -> None:
        """Idempotent."""
        self._native.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
