"""ctypes binding of ``libhyperframes.so`` (client/c/hyperframes.h). Nothing here knows torch."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from ._engine import Placement
from .errors import Unavailable, error_from_code

_ABI_MAJOR = 1
_NAME = "libhyperframes.so"
_PREFETCH_CAPACITY = 64
_RELEASE_CAPACITY = 256


class _Placement(ctypes.Structure):
    _fields_ = [("handle", c_uint64), ("tier", c_int32), ("overflow", c_int32)]


def library_candidates() -> list[Path]:
    """Where the library is looked for, in order."""
    here = Path(__file__).resolve().parent
    chosen = os.environ.get("HYPERFRAMES_LIBRARY")
    if chosen:
        return [Path(chosen)]
    return [here / _NAME, here.parents[2] / "bazel-bin" / "client" / "c" / _NAME]


_SIGNATURES: dict[str, list[Any]] = {
    "hf_parse_bytes": [c_char_p, POINTER(c_int64)],
    "hf_parse_duration": [c_char_p, POINTER(c_double)],
    "hf_format_bytes": [c_int64, c_char_p, c_int64],
    "hf_plan": [c_char_p, POINTER(c_void_p)],
    "hf_machine_open": [c_char_p, POINTER(c_void_p)],
    "hf_machine_describe": [c_void_p, POINTER(c_void_p)],
    "hf_judge_collectives": [c_void_p, c_char_p, POINTER(c_void_p)],
    "hf_engine_open": [c_void_p, c_char_p, POINTER(c_void_p)],
    "hf_put": [
        c_void_p, c_int32, c_int32, c_int32, c_void_p, c_int64, c_int32, c_char_p, c_int64,
        c_void_p, POINTER(_Placement),
    ],
    "hf_take_releasable": [
        c_void_p, c_int64, c_void_p, POINTER(c_uint64), c_int64, POINTER(c_int64),
    ],
    "hf_fetch": [c_void_p, c_uint64, c_void_p, c_int32, c_void_p],
    "hf_wait": [c_void_p, c_uint64, c_void_p],
    "hf_next_to_prefetch": [
        c_void_p, POINTER(c_uint64), POINTER(c_int64), c_int64, POINTER(c_int64),
    ],
    "hf_drop": [c_void_p, c_uint64],
    "hf_set_limits": [c_void_p, c_int64, c_int64],
    "hf_quiesce": [c_void_p],
    "hf_engine_stats": [c_void_p, POINTER(c_void_p)],
    "hf_report": [c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64],
    "hf_report_micro_batches": [c_void_p, c_int32, c_int64, c_int64, c_int64],
    "hf_take_revocation": [c_void_p, POINTER(c_void_p)],
    "hf_client_open": [c_char_p, c_char_p, POINTER(c_void_p)],
    "hf_call": [c_void_p, c_char_p, c_char_p, c_double, POINTER(c_void_p)],
}  # fmt: skip


class Library:
    """The loaded library. Every failing call raises the error class of its code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dll = ctypes.CDLL(str(path))
        self._dll.hf_abi_version.restype = ctypes.c_uint32
        self._dll.hf_version.restype = c_char_p
        self._dll.hf_last_error.restype = c_char_p
        self._dll.hf_free.argtypes = [c_void_p]
        self._dll.hf_free.restype = None
        for name in ("hf_machine_close", "hf_engine_close", "hf_client_close"):
            function = getattr(self._dll, name, None)
            if function is not None:
                function.argtypes = [c_void_p]
                function.restype = None
        major = int(self._dll.hf_abi_version()) >> 16
        if major != _ABI_MAJOR:
            raise Unavailable(
                f"{path} speaks ABI {major}, this package {_ABI_MAJOR}: "
                "install package and library of the same release."
            )
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """The foreign function, with its signature set."""
        found = self._functions.get(name)
        if found is None:
            found = getattr(self._dll, name)
            found.argtypes = _SIGNATURES[name]
            found.restype = c_int32
            self._functions[name] = found
        return found

    def check(self, code: int) -> None:
        """Raises the last error of this thread unless ``code`` is OK."""
        if code != 0:
            message = (self._dll.hf_last_error() or b"").decode("utf-8", "replace")
            if message.startswith("hf_"):  # Which call it was says nothing to a Python user.
                message = message.partition(": ")[2] or message
            raise error_from_code(code, message)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls and checks."""
        self.check(self.function(name)(*arguments))

    def text(self, name: str, *arguments: Any) -> str:
        """Calls a function whose last parameter is an owned string."""
        out = c_void_p()
        self.call(name, *arguments, byref(out))
        if not out.value:
            return ""
        try:
            return ctypes.string_at(out.value).decode("utf-8")
        finally:
            self._dll.hf_free(out)

    def close_object(self, name: str, pointer: c_void_p) -> None:
        """hf_*_close."""
        getattr(self._dll, name)(pointer)

    def version(self) -> str:
        """Release of the library."""
        return str(self._dll.hf_version().decode())


_loaded: Library | None = None


def library() -> Library:
    """The library, loaded once. Raises Unavailable with the places that were looked at."""
    global _loaded
    if _loaded is None:
        candidates = library_candidates()
        for path in candidates:
            if path.exists():
                _loaded = Library(path)
                break
        else:
            places = ", ".join(str(path) for path in candidates)
            raise Unavailable(
                f"{_NAME} was not found (looked at {places}): build it with "
                "'bazel build //client/c:libhyperframes.so' or set HYPERFRAMES_LIBRARY."
            )
    return _loaded


def parse_bytes(text: str) -> int:
    """The one size parser: ``"60GiB"`` to bytes. InvalidArgument names value and units."""
    out = c_int64()
    library().call("hf_parse_bytes", text.encode(), byref(out))
    return out.value


def parse_duration(text: str) -> float:
    """``"250ms"`` to seconds."""
    out = c_double()
    library().call("hf_parse_duration", text.encode(), byref(out))
    return out.value


def format_bytes(count: int) -> str:
    """``"1.50GiB"``."""
    buffer = ctypes.create_string_buffer(64)
    library().call("hf_format_bytes", count, buffer, len(buffer))
    return buffer.value.decode()


def plan(problem: dict[str, Any]) -> dict[str, Any]:
    """PlanProblem to FramePlan, both as JSON values."""
    answer = library().text("hf_plan", json.dumps(problem).encode())
    return dict(json.loads(answer))


class Machine:
    """GPUs and host memory that an embedded process can use."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._library = library()
        self._pointer = c_void_p()
        self._library.call("hf_machine_open", json.dumps(options).encode(), byref(self._pointer))

    @property
    def pointer(self) -> c_void_p:
        """The hf_machine."""
        return self._pointer

    def describe(self) -> dict[str, Any]:
        """``{"devices", "links"}``; links are measured now."""
        return dict(json.loads(self._library.text("hf_machine_describe", self._pointer)))

    def judge_collectives(self, measured: dict[str, Any]) -> dict[str, Any]:
        """What ranks measured among their GPUs; see client/c/unfit_collectives.h."""
        asked = json.dumps(measured).encode()
        return dict(json.loads(self._library.text("hf_judge_collectives", self._pointer, asked)))

    def close(self) -> None:
        """Idempotent. Engines on it must have been closed."""
        if self._pointer.value:
            pointer, self._pointer = self._pointer, c_void_p()
            self._library.close_object("hf_machine_close", pointer)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


class NativeEngine:
    """hf_engine. Closed by close(), else when the last frame that needs it is gone."""

    def __init__(self, machine: Machine, options: dict[str, Any]) -> None:
        self._library = library()
        self._machine = machine  # Outlives the engine.
        self._pointer = c_void_p()
        self._library.call(
            "hf_engine_open", machine.pointer, json.dumps(options).encode(), byref(self._pointer)
        )
        self._put = self._library.function("hf_put")
        self._fetch = self._library.function("hf_fetch")
        self._wait = self._library.function("hf_wait")
        self._drop = self._library.function("hf_drop")
        self._take = self._library.function("hf_take_releasable")
        self._next = self._library.function("hf_next_to_prefetch")

    def put(
        self,
        micro_batch: int,
        block: int,
        ordinal: int,
        source: int,
        nbytes: int,
        tier: int,
        device: str,
        preferred_offset: int,
        stream: int,
    ) -> Placement:
        out = _Placement()
        self._library.check(
            self._put(
                self._pointer, micro_batch, block, ordinal, source, nbytes, tier, device.encode(),
                preferred_offset, stream, byref(out),
            )
        )  # fmt: skip
        return Placement(out.handle, out.tier, bool(out.overflow))

    def take_releasable(self, limit: int, stream: int) -> list[int]:
        handles: list[int] = []
        while True:
            buffer = (c_uint64 * _RELEASE_CAPACITY)()
            count = c_int64()
            self._library.check(
                self._take(self._pointer, limit, stream, buffer, _RELEASE_CAPACITY, byref(count))
            )
            handles.extend(buffer[: count.value])
            if count.value < _RELEASE_CAPACITY:
                return handles

    def fetch(self, handle: int, destination: int, is_prefetch: bool, stream: int) -> None:
        self._library.check(
            self._fetch(self._pointer, handle, destination, int(is_prefetch), stream)
        )

    def wait(self, handle: int, stream: int) -> None:
        self._library.check(self._wait(self._pointer, handle, stream))

    def next_to_prefetch(self) -> list[tuple[int, int]]:
        handles = (c_uint64 * _PREFETCH_CAPACITY)()
        sizes = (c_int64 * _PREFETCH_CAPACITY)()
        count = c_int64()
        self._library.check(
            self._next(self._pointer, handles, sizes, _PREFETCH_CAPACITY, byref(count))
        )
        return list(zip(handles[: count.value], sizes[: count.value], strict=True))

    def drop(self, handle: int) -> None:
        if self._pointer.value:
            self._drop(self._pointer, handle)

    def set_limits(self, stash: int, prefetch: int) -> None:
        self._library.call("hf_set_limits", self._pointer, stash, prefetch)

    def quiesce(self) -> None:
        self._library.call("hf_quiesce", self._pointer)

    def stats(self) -> dict[str, Any]:
        return dict(json.loads(self._library.text("hf_engine_stats", self._pointer)))

    def report(
        self,
        steps: int,
        activation_bytes: int,
        activation_peak_bytes: int,
        recompute_ns: int,
        predicted_peak_bytes: int,
    ) -> None:
        self._library.call(
            "hf_report", self._pointer, steps, activation_bytes, activation_peak_bytes,
            recompute_ns, predicted_peak_bytes,
        )  # fmt: skip

    def report_micro_batches(self, stage: int, count: int, run_ns: int, wait_ns: int) -> None:
        self._library.call("hf_report_micro_batches", self._pointer, stage, count, run_ns, wait_ns)

    def take_revocation(self) -> str | None:
        return self._library.text("hf_take_revocation", self._pointer) or None

    def close(self) -> None:
        """Idempotent. Waits for copies under way and returns the leases."""
        if self._pointer.value:
            pointer, self._pointer = self._pointer, c_void_p()
            self._library.close_object("hf_engine_close", pointer)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


class NativeClient:
    """hf_client: calls of the coordinator, requests and responses as JSON values."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self._library = library()
        self._pointer = c_void_p()
        self._library.call(
            "hf_client_open", address.encode(), json.dumps(options).encode(), byref(self._pointer)
        )

    def call(self, method: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One call; timeout_s <= 0: the client's default."""
        answer = self._library.text(
            "hf_call", self._pointer, method.encode(), json.dumps(request).encode(), timeout_s
        )
        return dict(json.loads(answer or "{}"))

    def close(self) -> None:
        """Idempotent."""
        if self._pointer.value:
            pointer, self._pointer = self._pointer, c_void_p()
            self._library.close_object("hf_client_close", pointer)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()
