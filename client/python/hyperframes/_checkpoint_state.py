"""What a rank needs beside the tensors to go on exactly: random numbers, data, the user's objects.

Saved so that torch.load(weights_only=True) reads it: resuming never runs code from a file. What
could not be read back that way is refused when it is saved, with its place in the object.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _registry
from ._checkpoint_tensors import Optimizers, StateDict
from ._config import cluster
from ._refusals import unwrap_data_parallel
from .errors import DataLoss, InvalidArgument

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # In names, and in those of torch not.
_ARRAY = "__hyperframes_array__"


ORDER_LIMIT = 4096  # Ids in an order table, on the wire too.


@dataclass
class Counters:
    """Where the training is. All are of this process but ``step``, which all ranks share."""

    step: int = 0  # Optimizer steps applied.
    micro_batches: int = 0  # Training forwards of the model.
    # Ids of the micro-batches of the superframe that ended last, in the order in which they ran.
    order_table: list[int] = field(default_factory=list)


@dataclass
class Snapshot:
    """One rank's state at a superframe end, in host memory."""

    counters: Counters
    superframe: int
    tensors: StateDict
    rank_state: dict[str, Any]
    plan: dict[str, Any]
    buffers: frozenset[str]  # Names of the model's tensors that each rank has its own values of.


def check_stateful(value: Any, name: str) -> None:
    """InvalidArgument: it cannot be saved and put back."""
    if isinstance(value, torch.Generator):
        return
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(value, method, None)):
            hint = (
                " (torchdata's StatefulDataLoader has one; without it, leave loader=None and skip "
                "checkpoints.micro_batches micro-batches after resume())"
                if name == "loader"
                else ""
            )
            raise InvalidArgument(f"{name} is a {type(value).__name__} without {method}(){hint}.")


def rank_state(model: nn.Module, loader: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of everything that is this rank's own. InvalidArgument: something cannot be saved."""
    return {
        "random": _random_states(),
        "loader": None if loader is None else _encode(_state(loader), "loader"),
        "extra": {name: _encode(_state(each), f"extra[{name!r}]") for name, each in extra.items()},
        "buffers": {name: buffer.detach().cpu().clone() for name, buffer in _buffers(model)},
    }


def to_bytes(state: dict[str, Any]) -> bytes:
    """As the file of a rank holds it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def from_file(path: Path) -> dict[str, Any]:
    """DataLoss: not readable without running code from it."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataLoss(f"{path} cannot be read: {str(error)[:200]}.") from error
    return dict(state)


def restore_objects(
    state: dict[str, Any], loader: Any, extra: Mapping[str, Any], *, exact: bool
) -> list[str]:
    """Into the user's objects; names of those that the checkpoint lacks, or that do not match."""
    missing = []
    saved = state["extra"]
    for name, each in extra.items():
        if name in saved:
            _set_state(each, _decode(saved[name]))
        else:
            missing.append(f"extra[{name!r}]")
    missing += [f"extra[{name!r}] of the checkpoint" for name in saved if name not in extra]
    if loader is not None and state["loader"] is not None and exact:
        _set_state(loader, _decode(state["loader"]))
    elif (loader is None) != (state["loader"] is None) or (loader is not None and not exact):
        missing.append("loader")
    return missing


def restore_buffers(state: dict[str, Any], model: nn.Module) -> None:
    """This rank's own: data parallel ranks differ in them between two forwards."""
    saved = state["buffers"]
    with torch.no_grad():
        for name, buffer in _buffers(model):
            if name in saved and saved[name].shape == buffer.shape:
                buffer.copy_(saved[name])


def restore_random(state: dict[str, Any]) -> None:
    """Last of all, so that nothing that restoring does can draw a number after it."""
    states = state["random"]
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    if "numpy" in states:
        import numpy

        numpy.random.set_state(_decode(states["numpy"]))
    torch.set_rng_state(states["torch"])
    for index, each in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(each, index)


def buffer_names(model: nn.Module) -> frozenset[str]:
    """Of persistent, unsharded buffers."""
    return frozenset(name for name, _ in _buffers(model))


def plan_of(model: nn.Module) -> dict[str, Any]:
    """Id and epoch of the plan in force, when a HyperFrames context is open around the model."""
    plan = _registry.plan_of(model)
    if plan is None:
        return {"id": "", "epoch": 0}
    raw = plan.raw
    return {"id": str(raw.get("id", "")), "epoch": int(raw.get("epoch", 0))}


def topology_of(model: nn.Module, optimizers: Optimizers, world_size: int) -> dict[str, Any]:
    """What has to be the same for a resumed run to be bit-equal."""
    meshes = sorted({
        str(p.device_mesh.shape) for p in model.parameters() if hasattr(p, "device_mesh")
    })  # fmt: skip
    device = next((p.device.type for p in model.parameters()), "cpu")
    return {
        "world_size": world_size,
        "data_parallel": type(model).__name__ if model is not unwrap_data_parallel(model) else "",
        "meshes": meshes,
        "device": device,
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
    }


def environment_of(model: nn.Module) -> dict[str, Any]:
    """What may change bits but not what the state means: told, not refused."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "torch": torch.__version__,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def hash_of(topology: Mapping[str, Any]) -> str:
    """64 hex digits."""
    return hashlib.sha256(json.dumps(dict(topology), sort_keys=True).encode()).hexdigest()


def job_of() -> str:
    """The coordinator's job that this process works for; empty: none."""
    found = cluster()
    return found.job_id if found is not None else ""


def _random_states() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    states: dict[str, Any] = {
        "python": (version, list(internal), gauss),
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if cuda else [],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = _encode(numpy.random.get_state(legacy=False), "numpy.random")
    return states


def _buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    found = []
    for prefix, module in unwrap_data_parallel(model).named_modules():
        for name, buffer in module._buffers.items():
            persistent = name not in module._non_persistent_buffers_set
            if buffer is not None and persistent and not hasattr(buffer, "_local_tensor"):
                path = f"{prefix}.{name}" if prefix else name
                for wrapper in _WRAPPERS:
                    path = path.replace(wrapper, "")
                found.append((path, buffer))
    return found


def _state(value: Any) -> Any:
    return value.get_state() if isinstance(value, torch.Generator) else value.state_dict()


def _set_state(value: Any, state: Any) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(state)
    else:
        value.load_state_dict(state)


def _encode(value: Any, where: str) -> Any:
    """A copy in types that weights_only reads back. InvalidArgument: another type, and where."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if kind in (dict, OrderedDict, Counter):
        pairs = ((key, _encode(each, f"{where}[{key!r}]")) for key, each in value.items())
        return kind(dict(pairs)) if kind is not OrderedDict else OrderedDict(pairs)
    if kind in (list, tuple, set):
        return kind(_encode(each, f"{where}[{index}]") for index, each in enumerate(value))
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        raw = (
            torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else None
        )
        return {_ARRAY: raw, "dtype": value.dtype.str, "shape": list(value.shape),
                "scalar": kind.__name__ != "ndarray"}  # fmt: skip
    raise InvalidArgument(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be read back without "
        "running code from the file: give plain values, tensors or numpy arrays in state_dict()."
    )


def _decode(value: Any) -> Any:
    kind = type(value)
    if kind is dict and _ARRAY in value:
        import numpy

        raw = value[_ARRAY]
        data = b"" if raw is None else raw.numpy().tobytes()
        array = numpy.frombuffer(data, dtype=value["dtype"]).reshape(value["shape"]).copy()
        return array[()] if value["scalar"] else array
    if kind in (dict, Counter):
        return kind({key: _decode(each) for key, each in value.items()})
    if kind is OrderedDict:
        return OrderedDict((key, _decode(each)) for key, each in value.items())
    if kind in (list, tuple, set):
        return kind(_decode(each) for each in value)
    return value
