"""Errors with the numbers of the C ABI: a script can tell "does not fit" from "cannot reach"."""

# Named as the statuses are, here and in C++.
# ruff: noqa: N818

from __future__ import annotations


class HyperFramesError(RuntimeError):
    """Base of every error raised by HyperFrames.

    Attributes:
        code: number of the status (those of gRPC), as in ``hyperframes.h``.
    """

    code: int = 2

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class InvalidArgument(HyperFramesError):
    """A value that cannot be meant; the message names it and what is accepted."""

    code = 3


class NotFound(HyperFramesError):
    """A job, plan or handle that does not exist."""

    code = 5


class PermissionDenied(HyperFramesError):
    """Another job's token."""

    code = 7


class ResourceExhausted(HyperFramesError):
    """No plan fits; the message names the smallest budget that works."""

    code = 8


class FailedPrecondition(HyperFramesError):
    """Refused in the present state: checkpointing already on, a nested offloader, ..."""

    code = 9


class RecomputeMismatch(HyperFramesError):
    """A recomputed block saved other tensors than its forward; the message names the block."""

    code = 10


class Unimplemented(HyperFramesError):
    """A tensor subclass or feature that is not supported; the message names it."""

    code = 12


class Unavailable(HyperFramesError):
    """The coordinator cannot be reached, or the native library is missing."""

    code = 14


class DataLoss(HyperFramesError):
    """A frame came back with other bytes than were put (``verify=True``)."""

    code = 15


class DeadlineExceeded(HyperFramesError):
    """The answer did not come in time."""

    code = 4


class ResultsDiffer(HyperFramesError):
    """Two ways to run one step gave other losses or gradients; the message names the tensor."""

    code = 15


_BY_CODE: dict[int, type[HyperFramesError]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        RecomputeMismatch,
        Unimplemented,
        Unavailable,
        DataLoss,
    )
}


def error_from_code(code: int, message: str) -> HyperFramesError:
    """The error class for a status code of the native library."""
    return _BY_CODE.get(code, HyperFramesError)(message, code)
