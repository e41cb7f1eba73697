"""Environment variables and the values that users write as text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from . import _native
from .errors import InvalidArgument

Size = int | str | None

_FORBIDDABLE = ("keep", "peer", "host", "recompute", "selective")
_OBJECTIVES = ("time", "level")
_PLAN_TIMEOUT = "120s"  # The coordinator answers once every rank of the job has asked.


def mode() -> str:
    """``HYPERFRAMES_MODE``: "on" (default) or "off"."""
    value = os.environ.get("HYPERFRAMES_MODE", "on").lower()
    if value not in ("on", "off"):
        raise InvalidArgument(f"HYPERFRAMES_MODE={value!r}: use 'on' or 'off'.")
    return value


def parse_size(value: Size, name: str) -> int | None:
    """Bytes of ``"60GiB"`` or of a number; None stays None. 0 means none, never unlimited."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InvalidArgument(f"{name}={value!r}: use a size such as '60GiB', or a count of bytes.")
    try:
        return _native.parse_bytes(str(value))
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}={value!r}: {error}") from error


@dataclass(frozen=True)
class Limits:
    """What the user allows, parsed and checked for contradictions."""

    budget: int | None
    activation_budget: int | None
    host_budget: int | None
    forbidden: tuple[str, ...]
    objective: str


def parse_limits(
    budget: Size,
    activation_budget: Size,
    host_budget: Size,
    forbid: Iterable[str],
    objective: str,
) -> Limits:
    """InvalidArgument: an unreadable size, two budgets, an unknown word."""
    if isinstance(forbid, str):
        forbid = (forbid,)
    forbidden = tuple(sorted({word.lower() for word in forbid}))
    for word in forbidden:
        if word not in _FORBIDDABLE:
            raise InvalidArgument(f"forbid={word!r}: choose among {', '.join(_FORBIDDABLE)}.")
    if objective not in _OBJECTIVES:
        raise InvalidArgument(f"objective={objective!r}: choose 'time' or 'level'.")
    if budget is not None and activation_budget is not None:
        raise InvalidArgument(
            f"budget={budget!r} and activation_budget={activation_budget!r} are both given: "
            "budget bounds the whole process, activation_budget the activations; give one."
        )
    return Limits(
        parse_size(budget, "budget"),
        parse_size(activation_budget, "activation_budget"),
        parse_size(host_budget, "host_budget"),
        forbidden,
        objective,
    )


@dataclass(frozen=True)
class Cluster:
    """Where this worker's coordinator is, when a job was given to it."""

    address: str
    job_id: str
    job_token: str
    gpu: str
    rank: int
    world_size: int
    plan_timeout_s: float


def in_cluster() -> bool:
    """This process is a worker of a coordinator's job."""
    return bool(os.environ.get("HYPERFRAMES_COORDINATOR") and os.environ.get("HYPERFRAMES_JOB_ID"))


def cluster() -> Cluster | None:
    """The coordinator's job that this process is a worker of; None: embedded mode."""
    address = os.environ.get("HYPERFRAMES_COORDINATOR")
    job_id = os.environ.get("HYPERFRAMES_JOB_ID")
    if not address or not job_id:
        return None
    return Cluster(
        address=address,
        job_id=job_id,
        job_token=os.environ.get("HYPERFRAMES_JOB_TOKEN", ""),
        gpu=os.environ.get("HYPERFRAMES_GPU", ""),
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        plan_timeout_s=_native.parse_duration(
            os.environ.get("HYPERFRAMES_PLAN_TIMEOUT", _PLAN_TIMEOUT)
        ),
    )
