"""Counts activation bytes: storages that were saved for backward, as long as they live.

The same ruler serves every mode. A storage counts from the moment somebody holds it for backward
until its memory is really given back, whoever keeps it alive; parameters and buffers never count.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd.graph import saved_tensors_hooks

from . import _guard
from ._gathered import watch_gathered

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST_SAMPLES = 200_000


def top_hooks() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The pair of saved-tensor hooks that is on top on this thread, or None."""
    # The flag (ignore tracing) came with torch 2.5.
    getter = torch._C._autograd._top_saved_tensors_default_hooks
    try:
        found = getter(False)
    except TypeError:
        found = getter()  # type: ignore[call-arg]
    return found if found is None else (found[0], found[1])


class passing_hooks(saved_tensors_hooks):  # noqa: N801 - named like torch's own context manager
    """Hooks of ours: never mistaken for somebody else's offloader."""


class _Counted(weakref.ref[torch.UntypedStorage]):
    """Fires when the storage's memory is given back, not when a Python name goes."""

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


class ParameterStorages:
    """The storages of a model's parameters and buffers.

    By identity with a weak reference: FSDP2 frees and allocates them inside a step, and an
    activation may then live where a weight was.
    """

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        if model is not None:
            self.add(model)

    def add(self, module: torch.nn.Module) -> None:
        """Those that the module has now."""
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.layout is torch.strided and type(tensor.data) is torch.Tensor:
                storage = tensor.untyped_storage()
                self._known[storage._cdata] = weakref.ref(storage)

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        known = self._known.get(storage._cdata)
        return known is not None and known() is storage


class ActivationMeter:
    """Counts the bytes of living storages that were saved for backward.

    Use it around any loop; with HyperFrames, with ``torch.utils.checkpoint``, or with nothing::

        with hf.ActivationMeter(model) as meter:
            loss = loss_fn(model(x)); loss.backward()
        print(meter.peak_bytes)

    Args:
        model: parameters and buffers of it never count, and each of its forwards in training
            starts a new ``step_peak``.
        record: keep ``samples``, a list of (seconds since entry, bytes), for a picture.
    """

    def __init__(self, model: torch.nn.Module | None = None, *, record: bool = False) -> None:
        self._model = model
        self._skip = ParameterStorages(model)
        self._living: dict[int, _Counted] = {}
        self._lock = threading.RLock()
        self._current = 0
        self._peak = 0
        self._step_peak = 0
        self._undo: list[Callable[[], None]] = []
        self._record = record
        self._start = time.perf_counter()
        self._hooks: passing_hooks | None = None
        self.samples: list[tuple[float, int]] = []

    @property
    def current_bytes(self) -> int:
        """Bytes alive now."""
        return self._current

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at one moment since the last reset_peak()."""
        return self._peak

    @property
    def step_peak(self) -> int:
        """Most bytes alive at one moment since the model's last forward in training began."""
        return self._step_peak

    def reset_peak(self) -> int:
        """Starts a new peak from the bytes alive now; returns the old peak."""
        with self._lock:
            old, self._peak = self._peak, self._current
            return old

    def refresh(self) -> None:
        """Looks at the model's parameters again; they may have moved."""
        self._skip = ParameterStorages(self._model)

    def forget_model(self) -> None:
        """Keeps what was counted and nothing of the model; the meter is no longer in use."""
        self._model = None
        self._skip = ParameterStorages()

    def observe(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage from now until its memory is given back. Idempotent."""
        key = storage._cdata
        if key in self._living or storage in self._skip:
            return
        nbytes = storage.nbytes()
        counted: _Counted = _Counted(storage, self._gone)
        counted.key, counted.nbytes = key, nbytes
        with self._lock:
            self._living[key] = counted
            self._current += nbytes
            self._peak = max(self._peak, self._current)
            self._step_peak = max(self._step_peak, self._current)
            self._sample()

    def _gone(self, counted: Any) -> None:
        with self._lock:
            known = self._living.get(counted.key)
            if known is not None and known is counted:
                del self._living[known.key]
                self._current -= known.nbytes
                self._sample()

    def _sample(self) -> None:
        if self._record and len(self.samples) < _MOST_SAMPLES:
            self.samples.append((time.perf_counter() - self._start, self._current))

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            self.observe(tensor.untyped_storage())
        return tensor.detach()

    def _begin_step(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self.refresh()
            self._step_peak = self._current

    def _see_recomputation(self, hooks: Any) -> None:
        # Checkpoint's own hooks hide what it recomputes from every outer pair.
        if _guard.is_checkpoint_recomputation(hooks):
            below = hooks.pack_hook

            def pack(tensor: torch.Tensor) -> Any:
                if tensor.layout is torch.strided:
                    self.observe(tensor.untyped_storage())
                return below(tensor)

            hooks.pack_hook = pack

    def __enter__(self) -> ActivationMeter:
        _active.append(self)
        self._start = time.perf_counter()
        self.refresh()
        _guard.listen(self._see_recomputation)
        if self._model is not None:
            handle = self._model.register_forward_pre_hook(self._begin_step)
            # Gathered after the hook above: parts are looked at one by one, as they are.
            self._undo = [
                watch_gathered(self._model, lambda part: self._skip.add(part)),
                handle.remove,
            ]
        # Under hooks that already report to every active meter another pair would hide them.
        if not _are_ours(top_hooks()):
            self._hooks = passing_hooks(self._pack, lambda tensor: tensor)
            self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _active.remove(self)
        _guard.unlisten(self._see_recomputation)
        while self._undo:
            self._undo.pop()()
        if self._hooks is not None:
            self._hooks.__exit__(kind, error, trace)
            self._hooks = None


_active: list[ActivationMeter] = []
_reporting_packs: set[int] = set()


def _are_ours(hooks: tuple[Callable[..., Any], Callable[..., Any]] | None) -> bool:
    return hooks is not None and id(getattr(hooks[0], "__self__", None)) in _reporting_packs


def announce(owner: object) -> None:
    """Declares that the pack method of ``owner`` calls observe_everywhere itself."""
    _reporting_packs.add(id(owner))


def withdraw(owner: object) -> None:
    """Undoes announce()."""
    _reporting_packs.discard(id(owner))


def observe_everywhere(storage: torch.UntypedStorage) -> None:
    """Reports a storage that is held for backward to every meter in use."""
    for meter in _active:
        meter.observe(storage)


def metered(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes what a function saves under somebody else's hooks visible to the meters.

    For checkpoints other than ``torch.utils.checkpoint``, which the meter sees by itself: their own
    hooks hide what they save from every outer pair, so this one sits inside and hands all on.
    """

    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        below = top_hooks()
        if below is None or not _active:
            return function(*args, **kwargs)
        pack_below, unpack_below = below

        def pack(tensor: torch.Tensor) -> Any:
            # In forward checkpoint holds nothing; what its recomputation collects it does hold.
            if torch._C._current_graph_task_id() != -1 and tensor.layout is torch.strided:
                observe_everywhere(tensor.untyped_storage())
            return pack_below(tensor)

        with passing_hooks(pack, unpack_below):
            return function(*args, **kwargs)

    return wrapped
