"""Who decides that a checkpoint is complete: the files alone, or the coordinator.

Both are asked in the same order by every rank's writer: begin, prepare, then commit by rank 0 once
the folder has its final name. A committer never touches the files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ._checkpoint_ranks import Ranks, SaveSkipped
from ._config import Cluster
from .errors import (
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    HyperFramesError,
    NotFound,
    PermissionDenied,
    Unavailable,
)

_WATCH_S = 20.0
_LONGEST_PAUSE_S = 2.0
_LISTED = 1000
_COMMITTED = "CHECKPOINT_STATE_COMMITTED"
_PREPARED = "CHECKPOINT_STATE_PREPARED"
_ABORTED = "CHECKPOINT_STATE_ABORTED"


@dataclass(frozen=True)
class Shard:
    """What one rank has written: bytes of its files, SHA-256 of its manifest, its order table."""

    rank: int
    bytes: int
    digest: str
    micro_batches: list[int]


class Committer(Protocol):
    """The decision. All methods may block for a bounded time; prepare, commit are idempotent."""

    def begin(self, name: str, step: int, superframe: int, topology_hash: str) -> str:
        """On every rank, for the same step: the checkpoint's id; rank 0's is used."""

    def prepare(self, checkpoint_id: str, shard: Shard) -> None:
        """The rank's files are durable. On rank 0 it returns once every rank's are."""

    def commit(self, checkpoint_id: str) -> None:
        """Rank 0: the folder has its final name."""

    def abort(self, checkpoint_id: str, reason: str) -> None:
        """Never raises; the first reason stays."""

    def retire(self, checkpoint_id: str) -> bool:
        """Rank 0: whether its files may be deleted now."""

    def committed(self) -> list[str] | None:
        """Rank 0: names of committed checkpoints, newest first; None: the files decide."""

    def close(self) -> None:
        """Idempotent."""


class FileCommitter:
    """Without a coordinator: a complete folder that LATEST names is committed."""

    def begin(self, name: str, step: int, superframe: int, topology_hash: str) -> str:
        """A random id; rank 0's is used."""
        return os.urandom(6).hex()

    def prepare(self, checkpoint_id: str, shard: Shard) -> None:
        """The ranks' vote has said so already."""

    def commit(self, checkpoint_id: str) -> None:
        """The rename was the commit."""

    def abort(self, checkpoint_id: str, reason: str) -> None:
        """A folder without its final name is nothing."""

    def retire(self, checkpoint_id: str) -> bool:
        """Nobody else is to be asked."""
        return True

    def committed(self) -> list[str] | None:
        """The files decide."""
        return None

    def close(self) -> None:
        """Nothing is open."""


Call = Callable[[str, Mapping[str, Any], float | None], dict[str, Any]]


class CoordinatorCommitter:
    """The coordinator decides. It is asked again while it does not answer, up to ``patience_s``."""

    def __init__(
        self,
        call: Call,
        cluster: Cluster,
        directory: Path,
        ranks: Ranks,
        *,
        patience_s: float = 60.0,
        pause: Callable[[float], None] = time.sleep,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._call = call
        self._directory = str(directory)
        self._ranks = ranks
        self._patience_s = patience_s
        self._pause = pause
        self._close = close
        self._unaborted: dict[str, str] = {}  # Nobody could be told: they stand in the way.
        self._caller = {
            "version": {"major": 1, "minor": 0},
            "job_id": cluster.job_id,
            "job_token": cluster.job_token,
            "rank": ranks.rank,
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        }

    def begin(self, name: str, step: int, superframe: int, topology_hash: str) -> str:
        """SaveSkipped: the step is committed there already, or nobody answers."""
        for old, why in list(self._unaborted.items()):
            self.abort(old, why)
        request = {
            "directory": self._directory,
            "name": name,
            "global_step": step,
            "superframe_id": superframe,
            "world_size": self._ranks.size,
            "topology_hash": topology_hash,
        }
        try:
            begun = self._ask("BeginCheckpoint", request)
        except HyperFramesError as error:
            if error.code == 6:  # ALREADY_EXISTS
                raise SaveSkipped(str(error)) from error
            raise
        if begun.get("state") == _COMMITTED:
            raise SaveSkipped(f"Step {step} of {self._directory} is committed already.")
        return str(begun["id"])

    def prepare(self, checkpoint_id: str, shard: Shard) -> None:
        """FailedPrecondition, naming why: somebody has aborted it."""
        request = {
            "checkpoint_id": checkpoint_id,
            "shard": {
                "rank": shard.rank,
                "bytes": shard.bytes,
                "digest": shard.digest,
                "micro_batches": shard.micro_batches,
            },
        }
        seen = self._ask("PrepareCheckpoint", request)
        deadline = time.monotonic() + self._patience_s
        while self._ranks.first and seen.get("state") not in (_PREPARED, _COMMITTED):
            if seen.get("state") == _ABORTED:
                raise FailedPrecondition(f"The checkpoint was aborted: {seen.get('message', '')}")
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    f"The coordinator has not heard of every rank after {self._patience_s:.0f} s: "
                    f"{seen.get('message', '')}"
                )
            watch = {"checkpoint_id": checkpoint_id, "known": seen.get("state"), "wait_s": _WATCH_S}
            seen = self._ask("WatchCheckpoint", watch, as_caller=False)

    def commit(self, checkpoint_id: str) -> None:
        """SaveSkipped: nobody knows whether it heard; it is asked at the next resume."""
        self._ask("CommitCheckpoint", {"checkpoint_id": checkpoint_id})

    def abort(self, checkpoint_id: str, reason: str) -> None:
        """Told again before the next begin when the coordinator does not answer now."""
        request = {"caller": self._caller, "checkpoint_id": checkpoint_id, "reason": reason[:512]}
        try:
            self._call("AbortCheckpoint", request, None)
        except (Unavailable, DeadlineExceeded):
            self._unaborted[checkpoint_id] = reason
            return
        except HyperFramesError:
            pass  # Committed after all, or forgotten: either way not in the way.
        self._unaborted.pop(checkpoint_id, None)

    def retire(self, checkpoint_id: str) -> bool:
        """False: it has to stay, or is another job's, or nobody answers now."""
        request = {"caller": self._caller, "checkpoint_id": checkpoint_id}
        try:
            self._call("RetireCheckpoint", request, None)
        except NotFound:
            return True
        except (FailedPrecondition, PermissionDenied, Unavailable, DeadlineExceeded):
            return False
        return True

    def committed(self) -> list[str] | None:
        """Names in this directory, whichever job committed them."""
        request = {"directory": self._directory, "committed_only": True, "limit": _LISTED}
        listed = self._ask("ListCheckpoints", request, as_caller=False).get("checkpoints", ())
        # By step, not by age: a run that was resumed from an older one has committed again.
        newest = sorted(listed, key=lambda c: int(c.get("global_step", 0)), reverse=True)
        return [str(checkpoint["name"]) for checkpoint in newest]

    def close(self) -> None:
        """Closes the connection."""
        self._close()

    def _ask(
        self, method: str, request: Mapping[str, Any], *, as_caller: bool = True
    ) -> dict[str, Any]:
        """A call that outlives a coordinator's restart."""
        full = {"caller": self._caller, **request} if as_caller else dict(request)
        timeout_s = _WATCH_S + 10 if method == "WatchCheckpoint" else None
        deadline = time.monotonic() + self._patience_s
        pause_s = 0.1
        while True:
            try:
                return self._call(method, full, timeout_s)
            except (Unavailable, DeadlineExceeded) as error:
                if time.monotonic() + pause_s >= deadline:
                    raise SaveSkipped(
                        f"the coordinator did not answer {method} for "
                        f"{self._patience_s:.0f} s ({error})"
                    ) from error
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def missing(names: list[str], directory: Path) -> DataLoss:
    """What is committed but not there."""
    return DataLoss(
        f"Checkpoints are committed that {directory} does not hold: {', '.join(names[:8])}. Is the "
        "right file system mounted? To begin anew, give another directory."
    )
