"""How many forwards wait for their backwards at once: a plan's budget is for one."""

from __future__ import annotations

import weakref
from collections.abc import Callable


class ForwardToken:
    """Lives as long as anything that one forward saved."""

    __slots__ = ("__weakref__", "completed")

    def __init__(self) -> None:
        self.completed = False


class InFlight:
    """Counts forwards that still hold most of what they saved.

    Args:
        held: bytes that are held for backward now, wherever they wait.
    """

    def __init__(self, held: Callable[[], int]) -> None:
        self._held = held
        self._held_by_one = 0
        self._living: weakref.WeakSet[ForwardToken] = weakref.WeakSet()
        self.token: ForwardToken | None = None
        self.most = 1

    def begin(self) -> int:
        """A forward begins; the number in flight with it."""
        self.token = None
        count = 1
        # An output that nobody differentiated keeps a little of an old graph: no forward in flight.
        if self._held() * 2 >= self._held_by_one:
            count += sum(token.completed for token in self._living)
        self.most = max(self.most, count)
        self.token = ForwardToken()
        self._living.add(self.token)
        return count

    def completed(self) -> None:
        """The forward returned (one that raised waits for no backward)."""
        if self.token is not None:
            self.token.completed = True
            self._held_by_one = self._held() // max(1, sum(t.completed for t in self._living))
