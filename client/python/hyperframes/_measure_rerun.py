"""What a block needs while it runs again and nobody holds what it saves: the least that a moved
rerun can get by with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ._block_runs import words_of
from ._blocks import Ledger
from ._gathered import gathers_inside
from ._meter import ActivationMeter, ParameterStorages, passing_hooks
from ._recompute import Surroundings
from .errors import FailedPrecondition
from .profile import BlockInfo


class _Looking:
    """Saved-tensor hooks that hold nothing, and look at what is alive whenever something is saved.

    The second run ends with the last tensor saved, so what comes after it does not count.
    """

    def __init__(self, block: str, ledger: Ledger, parameters: ParameterStorages) -> None:
        self._block = block
        self._ledger = ledger
        self._parameters = parameters
        self._meter = ActivationMeter()
        self._cuda = ledger.device.type == "cuda"
        self._base = 0
        self.working_bytes = 0

    @property
    def saved_bytes(self) -> int:
        """Most bytes of the block's own storages that were alive at once."""
        return self._meter.peak_bytes

    def begin(self) -> None:
        """The arguments are there; the block runs next."""
        if self._cuda:
            torch.cuda.synchronize(self._ledger.device)
            torch.cuda.reset_peak_memory_stats(self._ledger.device)
            self._base = int(torch.cuda.memory_allocated(self._ledger.device))

    def pack(self, tensor: torch.Tensor) -> None:
        """The hook: the tensor is let go of."""
        if tensor.layout is torch.strided and tensor.device == self._ledger.device:
            if self._is_own(tensor.untyped_storage()):
                self._meter.observe(tensor.untyped_storage())
        if self._cuda:
            peak = int(torch.cuda.max_memory_allocated(self._ledger.device))
            self.working_bytes = max(0, peak - self._base)

    def _is_own(self, storage: torch.UntypedStorage) -> bool:
        record = self._ledger.find(storage)
        known = record is not None and (record.block != self._block or record.is_input)
        return not known and storage not in self._parameters

    def unpack(self, packed: Any) -> torch.Tensor:
        """A backward inside the forward: it cannot be measured like this."""
        raise FailedPrecondition(f"block {self._block} differentiates inside its forward")


def measure_rerun(
    info: BlockInfo,
    module: nn.Module,
    forward: Callable[..., Any],
    arguments: Callable[[], tuple[Any, Any]],
    ledger: Ledger,
    parameters: ParameterStorages,
) -> None:
    """Fills in ``rerun_bytes`` and ``rerun_working_bytes`` of ``info``; where that fails they stay
    0, and ``rerun_reason`` says why. Takes one forward of the block. Random states are as before;
    buffers are the caller's to put back, and the ledger is only read.

    Args:
        arguments: makes fresh positional and keyword arguments for one call.
        ledger: of the profile, after the block has run.
    """
    if gathers_inside(module):
        info.rerun_reason = "FSDP gathers its weights inside"
        return
    looking = _Looking(info.name, ledger, parameters)
    surroundings = Surroundings(module, ledger.device)
    surroundings.caches_casts = False  # As when it runs again: nothing is there before it.
    try:
        with surroundings.replayed():
            args, kwargs = arguments()
            looking.begin()
            with passing_hooks(looking.pack, looking.unpack):
                forward(*args, **kwargs)
    except Exception as error:  # Then it only runs again as a whole, as it would without this.
        info.rerun_reason = words_of(error)
        return
    info.rerun_bytes = looking.saved_bytes
    info.rerun_working_bytes = looking.working_bytes
