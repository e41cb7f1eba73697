"""A worker's exit code tells its launcher whether another try can end otherwise."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from types import TracebackType

from ._config import in_cluster
from .errors import DeadlineExceeded, HyperFramesError, Unavailable

UNREACHABLE, DO_NOT_RESTART, TIMED_OUT, FAILED = 3, 93, 124, 1
_PASSING = {Unavailable: UNREACHABLE, DeadlineExceeded: TIMED_OUT}
# Refused as it stands: the same program with the same values is refused again.
_REFUSED = frozenset({3, 5, 7, 8, 9, 10, 12})


def exit_code(error: BaseException) -> int:
    """What a worker that ends by this error exits with; 1 for everything that is not ours."""
    if not isinstance(error, HyperFramesError):
        return FAILED
    for kind, code in _PASSING.items():
        if isinstance(error, kind):
            return code
    return DO_NOT_RESTART if error.code in _REFUSED else FAILED


def exit_with_codes() -> None:
    """Workers of a job end by these codes; programs of their own as Python does (1)."""
    if not in_cluster():
        return
    previous = sys.excepthook
    codes: list[int] = []

    # torch.distributed wraps this hook and prints only once it has returned: it must not raise.
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        codes.append(exit_code(error))

    def leave() -> None:
        if not codes or codes[-1] == FAILED:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(codes[-1])  # The only way to set a status at this point.

    sys.excepthook = hook
    atexit.register(leave)
