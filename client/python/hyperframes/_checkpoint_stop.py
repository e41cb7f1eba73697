"""SIGTERM as a request: the handler only remembers it; what was installed before still runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignal:
    """``requested`` once SIGTERM has come to this rank. Other threads than the main one cannot
    install handlers; there it stays False unless somebody sets it."""

    def __init__(self, *, enabled: bool) -> None:
        self.requested = False
        self._enabled = enabled
        self._previous: Any = None
        self._installed = False

    def install(self) -> None:
        """From now on SIGTERM does not end the process."""
        if not self._enabled or threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        self._installed = True

    def restore(self) -> None:
        """Puts back what was there, unless somebody else has taken over meanwhile."""
        if self._installed and signal.getsignal(signal.SIGTERM) == self._on_signal:
            # None: it was not installed from Python, and cannot be put back from here.
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
        self._installed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if callable(self._previous):
            self._previous(number, frame)
