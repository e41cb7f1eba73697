"""Places where a test may kill this process: ``HYPERFRAMES_FAILPOINT=name[:rank[:pass]]``.

Without that variable a point costs one addition. With it the process ends by SIGKILL at the named
point, as a power cut would end it: nothing is flushed, no handler runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

_DURABLE = ("write.before", "write.after", "fsync.after", "rename.after", "parent.after")


def _durable(what: str) -> tuple[str, ...]:
    return tuple(f"{what}.{moment}" for moment in _DURABLE)


# Every point of a save, in the order in which one passes them. A test checks that all are passed.
SAVE_POINTS: tuple[str, ...] = (
    "capture.before",
    "capture.after",
    "begin.before",
    "begin.after",
    "folder.made",
    "tensors.write.before",
    "tensors.write.after",
    "tensors.fsync.after",
    "tensors.rename.before",
    "tensors.rename.after",
    *_durable("state"),
    *_durable("shard"),
    "prepare.before",
    "prepare.after",
    *_durable("manifest"),
    "aside.rename.before",
    "aside.rename.after",
    "publish.rename.before",
    "publish.rename.after",
    "publish.parent.after",
    "commit.before",
    "commit.after",
    *_durable("latest"),
    "retire.before",
    "retire.after",
    "remove.rename.after",
    "remove.delete.after",
)

passed: Counter[str] = Counter()  # How often each point was passed in this process.
_lock = threading.Lock()


def failpoint(name: str) -> None:
    """Counts the point; ends the process when the environment asks for it here."""
    with _lock:
        passed[name] += 1
        count = passed[name]
    wanted = os.environ.get("HYPERFRAMES_FAILPOINT")
    if not wanted:
        return
    point, _, rest = wanted.partition(":")
    rank, _, which = rest.partition(":")
    mine = os.environ.get("RANK", "0")
    if point == name and rank in ("", mine) and count == int(which or "1"):
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # The signal is on its way; not one instruction of ours more.
