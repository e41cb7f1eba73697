"""Tensors by torch.distributed.checkpoint: copied to host memory, written, read back.

Reading never runs code from a file: torch's own reader unpickles what it finds, so both places
where it does are replaced by ones that know which few classes may occur.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ._checkpoint_ranks import Ranks
from ._failpoints import failpoint
from .errors import DataLoss, FailedPrecondition, InvalidArgument

StateDict = dict[str, Any]
Optimizers = tuple[torch.optim.Optimizer, ...]


def state_of(model: nn.Module, optimizers: Optimizers) -> StateDict:
    """Model and optimizers by the model's own names, whatever wraps it. Tensors are not copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        weights, optimizer = get_state_dict(model, optimizers)
    return {"model": weights, "optimizer": optimizer}


class HostCopies:
    """Copies of the tensors in host memory, made into the same memory each time."""

    def __init__(self) -> None:
        self._shape: Any = None
        self._copies: StateDict = {}

    def copy(self, state: StateDict) -> StateDict:
        """Blocks until the copies are complete. The previous call's copies are overwritten."""
        shape = _shape_of(state)
        on_gpu = any(device == "cuda" for _, device, *_ in shape)
        if shape != self._shape:
            self._copies = _create_cpu_state_dict(state, pin_memory=on_gpu)
            self._shape = shape
        _refuse_objects(state)
        copied = _copy_state_dict(state, self._copies, non_blocking=on_gpu, type_check=False)
        if on_gpu:
            torch.cuda.synchronize()
        return copied


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}.{index}")
    else:
        yield path, value


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def _refuse_objects(state: StateDict) -> None:
    """InvalidArgument: a value that could not be read back without running code from the file."""
    for path, leaf in _leaves(state):
        if not isinstance(leaf, torch.Tensor) and type(leaf) not in _PLAIN:
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise InvalidArgument(
                f"{path} is a {kind}, which a checkpoint cannot hold: make it a plain Python value "
                "or a tensor (for a numpy number: float(value))."
            )


def _shape_of(state: StateDict) -> list[tuple[Any, ...]]:
    return [
        (path, leaf.device.type, type(leaf), leaf.dtype, tuple(local(leaf).shape))
        if isinstance(leaf, torch.Tensor)
        else (path, "")
        for path, leaf in _leaves(state)
    ]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; a plain tensor itself."""
    part: torch.Tensor = tensor._local_tensor if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")


def replica_digests(state: StateDict, skip: frozenset[str]) -> dict[str, str]:
    """SHA-256 of each tensor that is written once for all ranks; ``skip``: names in the model."""
    found = {}
    for path, leaf in _leaves(state):
        if not isinstance(leaf, torch.Tensor) or _is_sharded(leaf):
            continue
        if path.partition(".")[0] == "model" and path.partition(".")[2] in skip:
            continue
        flat = leaf.detach().contiguous().view(-1).view(torch.uint8)
        found[path] = hashlib.sha256(flat.numpy().data).hexdigest()
    return found


class _DurableFiles(filesystem.FileSystem):
    """Every file is on the disk before the writer goes on."""

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        if "w" not in mode:
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        failpoint("tensors.write.before")
        with super().create_stream(path, mode) as stream:
            yield stream
        failpoint("tensors.write.after")
        descriptor = os.open(path, os.O_RDONLY)  # The writer has closed the stream.
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        failpoint("tensors.fsync.after")

    def rename(self, path: Any, new_path: Any) -> None:
        failpoint("tensors.rename.before")
        super().rename(path, new_path)
        failpoint("tensors.rename.after")


class _Writer(filesystem.FileSystemWriter):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sync_files=False)  # _DurableFiles does it, with its failpoints.
        self.fs = _DurableFiles()


_METADATA_CLASSES = {
    (cls.__module__, cls.__qualname__): cls
    for cls in (
        dcp_metadata.ChunkStorageMetadata,
        dcp_metadata.TensorProperties,
        dcp_metadata.TensorStorageMetadata,
        dcp_metadata.BytesStorageMetadata,
        dcp_metadata.StorageMeta,
        dcp_metadata.Metadata,
        dcp_metadata.MetadataIndex,
        dcp_metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        filesystem._StoragePrefix,
        torch.Size,
    )
}


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes of DCP's metadata, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        found = _METADATA_CLASSES.get((module, name))
        if found is not None:
            return found
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if (module, name) == ("collections", "OrderedDict"):
            from collections import OrderedDict

            return OrderedDict
        if module.startswith("pathlib") and name in ("Path", "PosixPath", "PurePosixPath"):
            return Path
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into a checkpoint")


class _Reader(filesystem.FileSystemReader):
    """torch's reader, without its pickle.load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        """DataLoss: the file holds anything else than metadata."""
        path = Path(self.path) / ".metadata"
        try:
            found = _MetadataUnpickler(io.BytesIO(path.read_bytes())).load()
        except Exception as error:
            raise DataLoss(f"{path} cannot be read: {error}.") from error
        if not isinstance(found, dcp_metadata.Metadata):
            raise DataLoss(f"{path} is no metadata of torch.distributed.checkpoint.")
        if found.storage_meta is None:
            found.storage_meta = dcp_metadata.StorageMeta()
        return found


class _LoadPlanner(DefaultLoadPlanner):
    """torch's planner, without its torch.load(weights_only=False)."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        loaded = torch.load(value, weights_only=True)
        target: Any = self.original_state_dict
        *path, last = self.mappings[read_item.dest_index.fqn]
        for key in path:
            target = target[key]
        target[last] = loaded


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch warns that it runs in a single process, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write(state: StateDict, folder: Path, ranks: Ranks) -> None:
    """Collective: each rank its part, all durable on return."""
    with _quiet():
        state_dict_saver.save(
            state,
            storage_writer=_Writer(folder),
            process_group=ranks.group,
            no_dist=ranks.size == 1,
        )


def read(model: nn.Module, optimizers: Optimizers, folder: Path, ranks: Ranks) -> None:
    """Collective: puts what ``folder`` holds into model and optimizers.

    FailedPrecondition: they are not the ones that were saved; the message names the tensor.
    """
    state = state_of(model, optimizers)
    saved = _Reader(folder).read_metadata().state_dict_metadata
    _drop_unsaved_states(state, saved)
    try:
        with _quiet():
            state_dict_loader.load(
                state,
                storage_reader=_Reader(folder),
                planner=_LoadPlanner(),
                process_group=ranks.group,
                no_dist=ranks.size == 1,
            )
    except (CheckpointException, RuntimeError, ValueError, AssertionError) as error:
        raise FailedPrecondition(
            f"Model or optimizer differ from the ones in {folder}: "
            f"{' '.join(str(error).split())[-400:]}"
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        set_model_state_dict(model, state["model"])
        # Not strict: a parameter that had no state when it was saved gets none now.
        set_optimizer_state_dict(
            model, optimizers, state["optimizer"], options=StateDictOptions(strict=False)
        )


def _drop_unsaved_states(state: StateDict, saved: dict[str, Any]) -> None:
    """Parameters that never had a gradient had no optimizer state when they were saved.

    torch has just made states of zeros for all of them; kept, they would change the first steps of
    a parameter that gets its first gradient later.
    """
    states = state["optimizer"]["state"]
    for name in list(states):
        if not any(key.startswith(f"optimizer.state.{name}.") for key in saved):
            del states[name]
