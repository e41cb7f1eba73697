"""How full this machine's GPUs are, from NVML, without a context on any of them."""

from __future__ import annotations

import ctypes
import os


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Nvml:
    """Raises OSError where there is no NVML."""

    def __init__(self) -> None:
        named = os.environ.get("HYPERFRAMES_NVML_LIBRARY")  # As the programs take it.
        self._library = ctypes.CDLL(named or "libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._handles: dict[str, ctypes.c_void_p] = {}
        for index in range(count.value):
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            self._call("nvmlDeviceGetUUID", handle, uuid, 96)
            self._handles[uuid.value.decode()] = handle

    @property
    def uuids(self) -> list[str]:
        """In nvidia-smi's order."""
        return list(self._handles)

    def used(self) -> dict[str, int]:
        """Bytes in use on every GPU, whoever holds them."""
        used = {}
        for uuid, handle in self._handles.items():
            memory = _Memory()
            self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            used[uuid] = int(memory.used)
        return used

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise OSError(f"{function} failed with code {code}")
