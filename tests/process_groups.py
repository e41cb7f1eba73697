"""Programs of several ranks: how a test runs one, and how a rank leaves its process group."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import torch.distributed as dist

TESTS = Path(__file__).resolve().parent


def run_two_ranks(
    program: str, *arguments: str, environment: dict[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Runs the Python program as two ranks on this machine, with package and tests importable.

    Args:
        environment: added to this process's.

    Returns:
        The lines that both printed, sorted, and what each said on stderr.

    Raises:
        AssertionError: a rank failed; its last words.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    given = {
        **os.environ,
        "PYTHONPATH": f"{TESTS.parent / 'client' / 'python'}:{TESTS}",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        **(environment or {}),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), *arguments],
            env={**given, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    lines: list[str] = []
    said: list[str] = []
    try:
        for one in ranks:
            out, errors = one.communicate(timeout=100)
            assert one.returncode == 0, errors[-3000:]
            lines += out.splitlines()
            said.append(errors)
    finally:
        for one in ranks:
            one.kill()
    return sorted(lines), said


def leave_group() -> None:
    """Before the program ends, on every rank.

    Gloo's threads let go of a collective's tensors in their own time. Where Python knows such a
    tensor too (FSDP2's full_tensor(), all_gather_object), doing so while Python ends aborts the
    process: "terminate called without an active exception". They do it while a barrier waits.
    """
    dist.barrier()
    dist.destroy_process_group()
