"""The job's process group as its pre-flight needs it: collectives that may not be done in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

_SPIN_S = 0.002  # For so long looks are as frequent as they can be: the shortest take 0.1 ms.
_LONGEST_NAP_S = 0.01
_BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


class Pending(Protocol):
    """A collective under way."""

    def wait(self, seconds: float | None) -> bool:
        """True once it is done; False when it is not within so many seconds (None: endless).

        Raises what the collective ended with.
        """
        ...

    def values(self) -> list[float]:
        """What was agreed on; after wait() alone."""
        ...


class Ring(Protocol):
    """Ranks that take part. Every method is a collective of all of them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks."""
        ...

    def first(self, value: Any) -> Any:
        """Rank 0's value."""
        ...

    def agree(self, values: Sequence[float]) -> Pending:
        """The largest of all ranks, of each value."""
        ...

    def all_reduce(self, nbytes: int) -> Pending: ...

    def send_receive(self, nbytes: int) -> Pending:
        """To the next rank of the ring, and from the one before."""
        ...


def backend_name(device: torch.device) -> str:
    """The default group's backend for tensors on ``device``; empty: it has none."""
    pairs = (pair.partition(":") for pair in str(dist.get_backend_config()).split(","))
    return next((name for kind, _, name in pairs if kind == device.type), "")


def fits(device: torch.device) -> bool:
    """Whether the group's collectives go over the links that are judged."""
    return backend_name(device) == _BACKENDS.get(device.type)


class JobRing:
    """The default group. Twice ``nbytes`` are held for as long as this object.

    RuntimeError: there is not so much memory.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device = device
        self._polled = device.type == "cuda"
        # Zeros: summed they stay zeros, and no random number is drawn for them.
        self._buffer = torch.zeros(2 * nbytes, dtype=torch.uint8, device=device)

    @property
    def rank(self) -> int:
        return int(dist.get_rank())

    @property
    def size(self) -> int:
        return int(dist.get_world_size())

    def gather(self, value: Any) -> list[Any]:
        return gather(value)

    def first(self, value: Any) -> Any:
        shared = [value]
        dist.broadcast_object_list(shared, src=0, device=self._device)
        return shared[0]

    def agree(self, values: Sequence[float]) -> Pending:
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        return self._pending([dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)], tensor)

    def all_reduce(self, nbytes: int) -> Pending:
        part = self._buffer[:nbytes].view(torch.float32)
        return self._pending([dist.all_reduce(part, async_op=True)])

    def send_receive(self, nbytes: int) -> Pending:
        half = self._buffer.numel() // 2
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        operations = [
            dist.P2POp(dist.isend, self._buffer[:nbytes], after),
            dist.P2POp(dist.irecv, self._buffer[half : half + nbytes], before),
        ]
        return self._pending(dist.batch_isend_irecv(operations))

    def _pending(self, works: list[Any], agreed: torch.Tensor | None = None) -> Pending:
        return _Polled(works, agreed) if self._polled else _Awaited(works, agreed)


def gather(value: Any) -> list[Any]:
    """Every rank's value, in the order of the default group's ranks. Collective."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


class _Polled:
    """NCCL's: work.wait() holds up a stream rather than the caller, so the work is looked at."""

    def __init__(self, works: list[Any], agreed: torch.Tensor | None) -> None:
        self._works = works
        self._agreed = agreed

    def wait(self, seconds: float | None) -> bool:
        began = time.monotonic()
        while not all(work.is_completed() for work in self._works):
            spent = time.monotonic() - began
            if seconds is not None and spent >= seconds:
                return False
            if spent > _SPIN_S:
                time.sleep(min(spent / 100, _LONGEST_NAP_S))
        for work in self._works:
            work.wait()
        return True

    def values(self) -> list[float]:
        return [] if self._agreed is None else [float(value) for value in self._agreed.tolist()]


class _Awaited(_Polled):
    """Gloo's: a send is done only in its wait(), and a wait() with a limit breaks the group."""

    def __init__(self, works: list[Any], agreed: torch.Tensor | None) -> None:
        super().__init__(works, agreed)
        self._done = threading.Event()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="hyperframes-preflight", daemon=True).start()

    def _run(self) -> None:
        try:
            for work in self._works:
                work.wait()
        except BaseException as error:  # Raised where it is waited for.
            self._error = error
        finally:
            self._done.set()

    def wait(self, seconds: float | None) -> bool:
        if not self._done.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True
