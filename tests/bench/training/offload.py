"""Ways to the host that others have: the inputs of checkpoints, and activations on demand."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks


class Pinned:
    """Pinned memory that is used again, by size: pinning a GiB takes a second.

    Args:
        pin: off where there is no GPU.
    """

    def __init__(self, pin: bool = True) -> None:
        self._pin = pin
        self.free: dict[int, list[tuple[torch.Tensor, torch.cuda.Event | None]]] = {}

    def take(self, tensor: torch.Tensor) -> Waiting:
        """Room for a tensor of that shape, dtype and, where they leave no gaps, strides."""
        nbytes = tensor.numel() * tensor.element_size()
        waiting = self.free.get(nbytes)
        if waiting:
            memory, last = waiting.pop()
        else:
            memory, last = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pin), None
        strides = torch.empty_like(tensor, device="meta").stride()
        return Waiting(
            self, memory, memory.view(tensor.dtype).as_strided(tensor.size(), strides), last
        )


@dataclass
class Waiting:
    """A tensor in pinned memory. When the last one forgets it, its room is free.

    Attributes:
        last_use: of the room; whoever writes to it next waits for that.
    """

    pinned: Pinned
    memory: torch.Tensor
    tensor: torch.Tensor
    last_use: torch.cuda.Event | None

    def __del__(self) -> None:
        rooms = self.pinned.free.setdefault(self.memory.numel(), [])
        rooms.append((self.memory, self.last_use))


@dataclass
class _Away:
    """A tensor that waits in pinned memory, or is on its way back."""

    host: Waiting
    copied: torch.cuda.Event | None
    source: torch.Tensor | None = None  # While the copy out may still read it.
    back: torch.Tensor | None = None
    back_copied: torch.cuda.Event | None = None


@dataclass
class HostCopies:
    """Copies on streams of their own. Without a GPU they are plain copies.

    Args:
        most_under_way: sources that are kept while their copies run; the compute stream waits for
            the oldest beyond that.
        in_turn: a copy back starts behind the compute that was queued before it, in memory that
            this may have used; else at once, as far ahead of the GPU as the processor is.
    """

    device: torch.device
    most_under_way: int = 5
    in_turn: bool = True
    _under_way: deque[_Away] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._streams = self.device.type == "cuda"
        self._pinned = Pinned(pin=self._streams)
        if self._streams:
            self._out = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._in = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def put(self, tensor: torch.Tensor) -> _Away:
        """Copies a tensor out."""
        host = self._pinned.take(tensor)
        if not self._streams:
            host.tensor.copy_(tensor.detach())
            return _Away(host, None)
        self._out.wait_stream(torch.cuda.current_stream())
        if host.last_use is not None:
            self._out.wait_event(host.last_use)
        with torch.cuda.stream(self._out):
            host.tensor.copy_(tensor.detach(), non_blocking=True)
            host.last_use = event = self._out.record_event()
        away = _Away(host, event, tensor.detach())
        self._under_way.append(away)
        self.release(self.most_under_way)
        return away

    def release(self, most: int) -> None:
        """Lets go of the sources of all copies but the ``most`` latest."""
        while len(self._under_way) > most:
            away = self._under_way.popleft()
            assert away.copied is not None
            torch.cuda.current_stream().wait_event(away.copied)
            away.source = None

    def bring(self, away: _Away) -> None:
        """Starts the copy back, once."""
        if away.back is not None or away.copied is None or away.source is not None:
            return
        compute = torch.cuda.current_stream()
        with torch.cuda.stream(compute if self.in_turn else self._in):
            away.back = torch.empty_like(away.host.tensor, device=self.device, pin_memory=False)
        if self.in_turn:
            self._in.wait_stream(compute)
        else:
            self._in.wait_event(away.copied)
            away.back.record_stream(compute)
        with torch.cuda.stream(self._in):
            away.back.copy_(away.host.tensor, non_blocking=True)
            away.host.last_use = away.back_copied = self._in.record_event()

    def get(self, away: _Away) -> torch.Tensor:
        """The tensor, for the compute stream. What never left is not copied back."""
        if not self._streams:
            return away.host.tensor.clone()
        if away.source is not None:
            return away.source
        self.bring(away)
        assert away.back is not None and away.back_copied is not None
        torch.cuda.current_stream().wait_event(away.back_copied)
        return away.back


def _owned_storages(model: nn.Module) -> set[int]:
    return {p.untyped_storage().data_ptr() for p in model.parameters()}


@contextlib.contextmanager
def on_demand_offload(
    model: nn.Module, device: torch.device, *, least_bytes: int = 1024
) -> Iterator[None]:
    """Every saved activation goes to pinned host memory and comes back when backward asks for it,
    with copies on streams of their own; those that the forward saved last stay. In the style of
    torchtune's OffloadActivations."""
    copies = HostCopies(device, in_turn=False)
    owned = _owned_storages(model)

    def pack(tensor: torch.Tensor) -> Any:
        small = tensor.numel() * tensor.element_size() < least_bytes
        if small or tensor.device.type != device.type:
            return tensor.detach()
        if tensor.untyped_storage().data_ptr() in owned:
            return tensor.detach()
        return copies.put(tensor)

    def unpack(packed: Any) -> torch.Tensor:
        return copies.get(packed) if isinstance(packed, _Away) else packed

    with saved_tensors_hooks(pack, unpack):
        yield
    copies.release(0)


class InputsOnHost:
    """Hooks around each checkpoint: what they save, its inputs, waits in pinned memory. The next
    one that backward needs is brought back while this one is recomputed."""

    def __init__(self, device: torch.device) -> None:
        self._copies = HostCopies(device, most_under_way=1)
        self._saved: list[_Away] = []
        self._device = device

    def begin(self) -> None:
        """A new forward."""
        self._copies.release(0)
        self._saved.clear()

    def hooks(self) -> saved_tensors_hooks:
        """To enter around the call of a checkpoint."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        if not tensor.numel() or tensor.device.type != self._device.type:
            return tensor.detach()
        away = self._copies.put(tensor)
        self._saved.append(away)
        return (away, len(self._saved) - 1)

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        away, index = packed
        tensor = self._copies.get(away)
        if index:
            self._copies.bring(self._saved[index - 1])
        self._saved[index] = _Away(away.host, away.copied)  # Ours: the copy dies with the graph's.
        return tensor
