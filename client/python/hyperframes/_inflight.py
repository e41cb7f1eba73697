"""How many forwards wait for their backwards at once: a plan's budget is for one. And how long each
micro-batch ran and waited.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable


class ForwardToken:
    """Lives as long as anything that one forward saved; says whether that forward returned."""

    __slots__ = ("__weakref__", "_ended", "completed")

    def __init__(self, ended: Callable[[bool], None]) -> None:
        self._ended = ended
        self.completed = False

    def __del__(self) -> None:
        self._ended(self.completed)


class MicroBatchTimes:
    """Micro-batches that have run: a forward's begin to its backward's end, by the host's clock.

    A micro-batch has ended when nothing that its forward saved lives any more. It waited from the
    end of the one before (of the last one, where several overlapped); the first has not waited.
    """

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._idle_since: int | None = None
        self._running = self._count = self._run_ns = self._wait_ns = 0

    def totals(self) -> tuple[int, int, int]:
        """Micro-batches, nanoseconds they ran, nanoseconds they waited."""
        return self._count, self._run_ns, self._wait_ns

    def begin(self) -> Callable[[bool], None]:
        """To be called at its end: with False when its forward raised, for then it ran no backward
        and counts as none.
        """
        began = self._now_ns()
        waited = 0 if self._idle_since is None else began - self._idle_since
        self._idle_since = None
        self._running += 1

        def end(has_run: bool) -> None:
            now = self._now_ns()
            self._running -= 1
            if not self._running:
                self._idle_since = now
            if has_run:
                self._count += 1
                self._run_ns += now - began
                self._wait_ns += waited

        return end


class InFlight:
    """Counts forwards that still hold most of what they saved."""

    def __init__(self) -> None:
        self._held_by_one = 0
        self._living: weakref.WeakSet[ForwardToken] = weakref.WeakSet()
        self.times = MicroBatchTimes()
        # Held while the forward runs. From then on by what it saved, so that it ends with that.
        self._of_forward: ForwardToken | None = None
        self._newest: weakref.ref[ForwardToken] | None = None
        self.most = 1

    @property
    def token(self) -> ForwardToken | None:
        """Of the newest forward; None when nothing that it saved is left."""
        return self._newest() if self._newest is not None else None

    def begin(self, held: int) -> int:
        """A forward begins; the number in flight with it.

        Args:
            held: bytes that are held for backward now, wherever they wait.
        """
        self._of_forward = self._newest = None
        count = 1
        # An output that nobody differentiated keeps a little of an old graph: no forward in flight.
        if held * 2 >= self._held_by_one:
            count += sum(token.completed for token in self._living)
        self.most = max(self.most, count)
        self._of_forward = ForwardToken(self.times.begin())
        self._newest = weakref.ref(self._of_forward)
        self._living.add(self._of_forward)
        return count

    def completed(self, held: int) -> None:
        """The forward returned (one that raised waits for no backward), and so much is held."""
        if self._of_forward is not None:
            self._of_forward.completed = True
            self._held_by_one = held // max(1, sum(t.completed for t in self._living))
            self._of_forward = None
