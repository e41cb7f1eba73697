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


@dataclass
class _Away:
    """A tensor that waits in pinned memory, or is on its way back."""

    host: torch.Tensor
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
    """

    device: torch.device
    most_under_way: int = 5
    _under_way: deque[_Away] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._streams = self.device.type == "cuda"
        if self._streams:
            self._out = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._in = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def put(self, tensor: torch.Tensor) -> _Away:
        """Copies a tensor out."""
        if not self._streams:
            return _Away(tensor.detach().clone(), None)
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            event = self._out.record_event()
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
        if away.back is not None or not self._streams or away.source is not None:
            return
        away.back = torch.empty_like(away.host, device=self.device, pin_memory=False)
        self._in.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._in):
            away.back.copy_(away.host, non_blocking=True)
            away.back_copied = self._in.record_event()

    def get(self, away: _Away) -> torch.Tensor:
        """The tensor, for the compute stream. What never left is not copied back."""
        if not self._streams:
            return away.host
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
    copies = HostCopies(device)
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
