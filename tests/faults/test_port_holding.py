"""A rendezvous port that the agent holds serves torch and nobody else (docs/cases.md C17)."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

torch_distributed = pytest.importorskip("torch.distributed", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
HOLDER = ROOT / "bazel-bin" / "agent" / "supervisor" / "hold_port"


@pytest.fixture
def held_ports() -> Iterator[list[int]]:
    """Two ports, held by two processes as two jobs on one host would have them."""
    if not os.access(HOLDER, os.X_OK):
        pytest.skip("build //agent/supervisor:hold_port first")
    holders = [
        subprocess.Popen([HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        ports = []
        for holder in holders:
            assert holder.stdout is not None
            ports.append(int(holder.stdout.readline()))
        yield ports
    finally:
        for holder in holders:
            holder.communicate(timeout=10)


@pytest.mark.parametrize("use_libuv", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_store_listens_on_a_held_port(held_ports: list[int], use_libuv: bool, host: str) -> None:
    assert held_ports[0] != held_ports[1]
    for port in held_ports:
        server = torch_distributed.TCPStore(
            host, port, world_size=2, is_master=True, wait_for_workers=False, use_libuv=use_libuv
        )
        client = torch_distributed.TCPStore(
            host, port, world_size=2, is_master=False, wait_for_workers=False, use_libuv=use_libuv
        )
        server.set("who", "rank 0")
        assert client.get("who") == b"rank 0"


def test_process_group_meets_on_a_held_port(
    held_ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(held_ports[0]))
    torch_distributed.init_process_group("gloo", rank=0, world_size=1)
    torch_distributed.destroy_process_group()


def test_nobody_else_gets_a_held_port(held_ports: list[int]) -> None:
    with socket.socket() as stranger, pytest.raises(OSError) as refused:
        stranger.bind(("127.0.0.1", held_ports[0]))
    assert refused.value.errno == errno.EADDRINUSE
    for _ in range(500):
        with socket.socket() as chosen_by_kernel:
            chosen_by_kernel.bind(("127.0.0.1", 0))
            assert chosen_by_kernel.getsockname()[1] not in held_ports
