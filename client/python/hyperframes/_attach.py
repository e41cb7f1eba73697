"""A program that torchrun or a shell has started becomes a coordinator's job by itself."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import sys
import threading
from typing import Any

import torch

from . import _native
from .errors import HyperFramesError

_ATTACH_TIMEOUT_S = 60.0  # An earlier run's end, or a restarted agent, is waited for.
_DETACH_TIMEOUT_S = 5.0
_PATIENCE_S = 3.0
_MOST_ARGUMENTS, _LONGEST_ARGUMENT = 32, 256


def attach_to_coordinator(device: torch.device) -> None:
    """Attaches this process where HYPERFRAMES_COORDINATOR is set and no job was given to it.

    What its agent answers is put into the environment, as for a worker that the agent starts. Does
    nothing elsewhere. Raises what the coordinator answers: no such node, no free GPU.
    """
    address = os.environ.get("HYPERFRAMES_COORDINATOR")
    if not address or os.environ.get("HYPERFRAMES_JOB_ID"):
        return
    notice = threading.Timer(_PATIENCE_S, _say_waiting, (address,))
    notice.daemon = True
    client = _native.NativeClient(address, {})
    notice.start()
    try:
        answer = client.call("AttachJob", _request(device), _ATTACH_TIMEOUT_S)
    finally:
        notice.cancel()
        client.close()
    os.environ.update({name: str(value) for name, value in answer["environment"].items()})
    atexit.register(_detach, address, answer, os.getpid())


def _say_waiting(address: str) -> None:
    print(
        f"HyperFrames: this program attaches to the coordinator at {address} and waits for its "
        f"answer, at most {_ATTACH_TIMEOUT_S:g} s; unset HYPERFRAMES_COORDINATOR to run without.",
        file=sys.stderr,
        flush=True,
    )


def _request(device: torch.device) -> dict[str, Any]:
    environment = os.environ
    process = _this_process()
    world_size = int(environment.get("WORLD_SIZE", "1"))
    return {
        "group_key": _group_key(process, world_size),
        "name": _name(environment.get("TORCHELASTIC_RUN_ID", "")),
        "command": [text[:_LONGEST_ARGUMENT] for text in sys.orig_argv[:_MOST_ARGUMENTS]],
        "rank": int(environment.get("RANK", "0")),
        "world_size": world_size,
        "local_rank": int(environment.get("LOCAL_RANK", "0")),
        "local_world_size": int(environment.get("LOCAL_WORLD_SIZE", "1")),
        "node": environment.get("HYPERFRAMES_NODE", ""),
        "hostname": socket.gethostname(),
        "process": process,
        "gpu": environment.get("HYPERFRAMES_GPU") or _gpu(device),
    }


def _this_process() -> dict[str, Any]:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
        return {
            "pid": os.getpid(),
            "start_time": int(fields[19]),
            "boot_id": boot_id.read().strip(),
        }


def _group_key(process: dict[str, Any], world_size: int) -> str:
    """The same on all ranks of one start of one program, and on no other."""
    if world_size == 1:
        return f"{process['boot_id']}/{process['pid']}/{process['start_time']}"
    master = os.environ.get("MASTER_ADDR", "")
    if master == "localhost" or master.startswith("127."):
        master = f"{socket.gethostname()}/{master}"  # Another host's is another program's.
    parts = [
        os.environ.get("TORCHELASTIC_RUN_ID", ""),
        f"{master}:{os.environ.get('MASTER_PORT', '')}",
        os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    ]
    return "/".join(parts)[:512]


def _name(run_id: str) -> str:
    script = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    words = [word for word in (script, run_id) if word and word != "none"]
    return re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(words))[:63] or "attached"


def _gpu(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else ""


def _detach(address: str, answer: dict[str, Any], pid: int) -> None:
    """At the interpreter's end. An exception that nobody caught is a failure."""
    if os.getpid() != pid:
        return  # A forked child's end is not this program's.
    failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    request = {
        "job_id": answer["job_id"],
        "job_token": answer["job_token"],
        "worker_id": answer["worker_id"],
        "exit_code": 1 if failed is not None else 0,
    }
    # Where it does not arrive, the agent sees the process go.
    with contextlib.suppress(HyperFramesError):
        client = _native.NativeClient(address, {})
        try:
            client.call("DetachJob", request, _DETACH_TIMEOUT_S)
        finally:
            client.close()
