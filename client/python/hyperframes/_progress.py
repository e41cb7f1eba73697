"""What is being done, once it takes longer than two seconds: silence looks like a hang.

Nothing is printed for work under two seconds, then a line at most every two seconds, to stderr, by
rank 0 only. On a terminal one line is written again and again. ``HYPERFRAMES_PROGRESS=off``
silences it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

PATIENCE_S = 2.0
_LONGEST_LINE = 240
_LONGEST_SENTENCE = 600


def tell(sentence: str) -> None:
    """One line on stderr, bounded."""
    with contextlib.suppress(OSError, ValueError):
        print(f"HyperFrames: {sentence[:_LONGEST_SENTENCE]}", file=sys.stderr, flush=True)


def wanted() -> bool:
    """HYPERFRAMES_PROGRESS does not silence it."""
    return os.environ.get("HYPERFRAMES_PROGRESS", "on").lower() != "off"


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


class Progress:
    """One piece of work. Call it to say how far it is; thread-safe.

    Args:
        what: "profiling": what the line begins with.
        total: how many units there are; 0: nobody knows.
        unit: what is counted, in the plural.
        clock: seconds, for tests.
        stream: where lines go.
        enabled: None: as environment and rank say.
        ask: called for the detail whenever a line is due, where nobody reports one.
    """

    def __init__(
        self,
        what: str,
        *,
        total: int = 0,
        unit: str = "",
        ask: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        stream: TextIO | None = None,
        enabled: bool | None = None,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = f" {unit}" if unit else ""
        self._ask = ask
        self._clock = clock
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = wanted() and _is_first() if enabled is None else enabled
        self._lock = threading.Lock()
        self._began = self._said = clock()
        self._done = 0
        self._detail = ""
        self._width = 0  # Of the line that stands on the terminal now; 0: none was written.
        self._spoke = False

    def __call__(self, detail: str = "", *, advance: int = 1) -> None:
        """One unit more is done (``advance=0``: none); ``detail`` names what is being done now."""
        with self._lock:
            self._done += advance
            self._detail = detail or self._detail
            self._speak()

    def phase(self, words: str) -> None:
        """What is being done now, where nothing is counted."""
        self(words, advance=0)

    def look(self) -> None:
        """Says where it is when a line is due; for whoever waits and has nothing to report."""
        with self._lock:
            self._speak()

    def _speak(self) -> None:
        now = self._clock()
        if not self._enabled or now - self._said < PATIENCE_S:
            return
        self._said = now
        if self._ask is not None:
            self._detail = self._ask()
        self._write(self._line(now), last=False)

    def _line(self, now: float) -> str:
        count = ""
        if self._total:
            count = f" {min(self._done, self._total)}/{self._total}{self._unit}"
        elif self._done:
            count = f" {self._done}{self._unit}"
        detail = f" ({self._detail})" if self._detail else ""
        line = f"HyperFrames: {self._what}{count}{detail}, {now - self._began:.0f} s"
        return line[:_LONGEST_LINE]

    def _write(self, line: str, *, last: bool) -> None:
        self._spoke = True
        # A closed stderr must not end a training.
        with contextlib.suppress(OSError, ValueError):
            if self._stream.isatty():
                self._stream.write("\r" + line.ljust(self._width) + ("\n" if last else ""))
                self._width = len(line)
            else:
                self._stream.write(line + "\n")
            self._stream.flush()

    def abandon(self) -> None:
        """The work failed: whatever is printed next begins a line of its own."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._width:
                self._stream.write("\n")
                self._stream.flush()

    def close(self) -> None:
        """The work is over: a line on a terminal is completed; where none was needed, nothing."""
        with self._lock:
            if self._spoke:
                self._write(f"{self._line(self._clock())}: done", last=True)


@contextlib.contextmanager
def progress(
    what: str,
    *,
    total: int = 0,
    unit: str = "",
    watch: bool = False,
    ask: Callable[[], str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    stream: TextIO | None = None,
    enabled: bool | None = None,
) -> Iterator[Progress]:
    """``with progress("profiling", total=24, unit="blocks") as tick: ... tick("layers.3")``.

    Args:
        watch: a thread looks every two seconds, for work that cannot report, such as one long call.
    """
    tick = Progress(
        what, total=total, unit=unit, ask=ask, clock=clock, stream=stream, enabled=enabled
    )
    ended = threading.Event()
    watcher: threading.Thread | None = None
    if watch and tick._enabled:

        def look() -> None:
            while not ended.wait(PATIENCE_S):
                tick.look()

        watcher = threading.Thread(target=look, name="hyperframes-progress", daemon=True)
        watcher.start()
    try:
        yield tick
    except BaseException:
        ended.set()
        if watcher is not None:
            watcher.join()
        tick.abandon()
        raise
    else:
        ended.set()
        if watcher is not None:
            watcher.join()
        tick.close()
