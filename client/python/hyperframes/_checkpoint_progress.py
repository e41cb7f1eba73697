"""Says on standard error what takes more than two seconds; at most a line a minute."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_FIRST_S, _SLOWEST_S = 2.0, 60.0


class Progress:
    """``with Progress("checkpoint step-00000050", enabled=rank == 0) as p: p.phase("writing")``."""

    def __init__(self, what: str, *, enabled: bool) -> None:
        self._what = what
        self._enabled = enabled
        self._phase = "starting"
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._said = False

    def phase(self, words: str) -> None:
        """What is being done now."""
        self._phase = words

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        if self._enabled:
            name = "hyperframes-progress"
            self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._said:
            self._say("failed" if error is not None else "done")

    def _watch(self) -> None:
        pause = _FIRST_S
        while not self._done.wait(pause):
            self._said = True
            self._say(self._phase)
            pause = min(2 * pause, _SLOWEST_S)

    def _say(self, words: str) -> None:
        seconds = time.monotonic() - self._start
        tell(f"{self._what}: {words} ({seconds:.0f} s)")


def tell(sentence: str) -> None:
    """One line."""
    print(f"HyperFrames: {sentence[:600]}", file=sys.stderr, flush=True)
