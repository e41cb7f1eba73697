"""The ranks that save together: agreement over a gloo group of our own.

Every error of one rank becomes the same error on all, with that rank's name: a rank that alone
raised would leave the others in a collective that nobody answers.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

import torch
import torch.distributed as dist

from ._group import world_size
from ._progress import wanted as progress_wanted
from .errors import HyperFramesError, ResourceExhausted, Unavailable, error_from_code

_LONGEST_MESSAGE = 600
_SIGN_OF_LIFE_S = 3.0


class SaveSkipped(Unavailable):
    """No checkpoint was taken, but nothing is wrong with the training: it goes on."""


class Ranks:
    """A group for one purpose; calls on it come from one thread at a time, in the same order."""

    def __init__(self, timeout_s: float) -> None:
        """Collective over the default group; without one this process is alone."""
        self.size = world_size()
        self.rank = int(dist.get_rank()) if self.size > 1 else 0
        self.group: Any = None
        self._failures = 0
        if self.size > 1:
            limit = datetime.timedelta(seconds=timeout_s)
            self.group = dist.new_group(backend="gloo", timeout=limit)

    @property
    def first(self) -> bool:
        """This is rank 0."""
        return self.rank == 0

    @property
    def reports(self) -> bool:
        """Says what takes long, for all of them."""
        return self.first and progress_wanted()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank. Unavailable names the ranks that do not answer."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(values, value, group=self.group)
        except RuntimeError as error:
            raise self.lost(error) from error
        return values

    def vote(self, error: BaseException | None, value: Any = None) -> list[Any]:
        """Every rank's value when no rank has an error; else the first one's, on every rank."""
        votes = self.gather((_on_the_wire(error), value))
        for rank, (pair, _) in enumerate(votes):
            if pair is not None:
                code, message, skipped = pair
                if self.size > 1 and not message.startswith("Rank "):
                    message = f"Rank {rank}: {message}"
                if skipped:
                    raise SaveSkipped(message) from error
                raise error_from_code(code, message) from error
        return [each for _, each in votes]

    def lost(self, error: BaseException) -> Unavailable:
        """What to say when a collective fails: who has gone."""
        gone = [1 - self.rank] if self.size == 2 else self._silent()
        names = ", ".join(str(rank) for rank in gone[:16]) or "unknown"
        return Unavailable(
            f"Rank {names} does not answer any more (it was killed, failed, or left "
            f"hf.checkpoint): {str(error).splitlines()[0][:200]}"
        )

    def _silent(self) -> list[int]:
        """Ranks that do not report on the rendezvous store, where all that are alive now do."""
        self._failures += 1
        try:
            store = dist.distributed_c10d._get_default_store()
            keys = [f"hyperframes/alive/{self._failures}/{rank}" for rank in range(self.size)]
            store.set(keys[self.rank], "1")
            deadline = time.monotonic() + _SIGN_OF_LIFE_S
            while time.monotonic() < deadline and not store.check(keys):
                time.sleep(0.05)
            return [rank for rank, key in enumerate(keys) if not store.check([key])]
        except RuntimeError:
            return [0]  # Rank 0 holds the store, and it does not answer.

    def close(self) -> None:
        """Idempotent; not collective."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None


class Flags:
    """A few bits, combined over all ranks while the next step runs.

    exchange() at the end of a step starts the reduction of this step's bits and answers with the
    previous step's: nobody ever waits for the network, and all ranks get the same answer.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._work: Any = None
        self._bits = torch.zeros(2, dtype=torch.int32)

    def exchange(self, *bits: bool) -> tuple[bool, ...]:
        """``bits`` of any rank, as of the previous call (alone: of this one)."""
        if self._ranks.size == 1:
            return bits
        answer = self.finish(len(bits))
        self._bits = torch.tensor([int(bit) for bit in bits], dtype=torch.int32)
        try:
            self._work = dist.all_reduce(
                self._bits, op=dist.ReduceOp.MAX, group=self._ranks.group, async_op=True
            )
        except RuntimeError as error:
            raise self._ranks.lost(error) from error
        return answer

    def finish(self, count: int = 2) -> tuple[bool, ...]:
        """Waits for the reduction under way, if there is one."""
        if self._work is None:
            return (False,) * count
        work, self._work = self._work, None
        try:
            work.wait()
        except RuntimeError as error:
            raise self._ranks.lost(error) from error
        return tuple(bool(bit) for bit in self._bits.tolist())

    def forget(self) -> None:
        """The others are not coming any more."""
        self._work = None


def _on_the_wire(error: BaseException | None) -> tuple[int, str, bool] | None:
    if error is None:
        return None
    known = as_named(error)
    return known.code, str(known)[:_LONGEST_MESSAGE], isinstance(known, SaveSkipped)


def as_named(error: BaseException, where: object = "") -> HyperFramesError:
    """Errors of files and of torch as ours: a sentence with what to do. ``where``: a path."""
    if isinstance(error, HyperFramesError):
        return error
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError):
        path = cause.filename or where
        return ResourceExhausted(
            f"The checkpoint could not be written{f' to {path}' if path else ''}: "
            f"{cause.strerror or cause}. Training can go on: make room there, and the next save "
            "that is due tries again."
        )
    return HyperFramesError(f"The checkpoint failed: {type(error).__name__}: {error}")
