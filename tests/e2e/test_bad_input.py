"""Bad input to the daemons: a sentence, a distinct code, and nothing lost."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import urllib.request
from pathlib import Path

import pytest

from example_jobs import shell_job
from local_cluster import LocalCluster, binary

DAEMONS = ("coordinator:hfcoordinator", "agent:hfagent")


def run(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary(target)), *arguments], capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize("target", DAEMONS)
def test_an_unknown_flag_is_named_with_the_nearest_one(target: str) -> None:
    done = run(target, "--listen-adress=127.0.0.1:0")
    assert done.returncode == 2
    assert "listen-adress" in done.stderr and "listen-address" in done.stderr


@pytest.mark.parametrize("target", DAEMONS)
def test_an_unreadable_config_is_named_with_its_path(target: str, tmp_path: Path) -> None:
    done = run(target, f"--config={tmp_path}/absent.conf")
    assert done.returncode == 4
    assert "absent.conf" in done.stderr


@pytest.mark.parametrize("target", DAEMONS)
def test_an_unknown_key_in_a_config_is_named_with_its_line(target: str, tmp_path: Path) -> None:
    config = tmp_path / "hf.conf"
    config.write_text("# comment\nlisten_adress = 127.0.0.1:0\n")
    done = run(target, f"--config={config}")
    assert done.returncode == 2
    assert "listen_adress" in done.stderr and ":2" in done.stderr


@pytest.mark.parametrize("target", DAEMONS)
def test_an_address_beyond_loopback_is_refused_without_tls(target: str, tmp_path: Path) -> None:
    done = run(
        target,
        "--listen-address=0.0.0.0:0",
        f"--{'state' if 'coordinator' in target else 'run'}-directory={tmp_path}/d",
        *([] if "coordinator" in target else ["--node=a", "--simulated-gpus=1MiB"]),
    )
    assert done.returncode in (2, 5)
    assert "0.0.0.0" in done.stderr and "loopback" in done.stderr


@pytest.mark.parametrize("target", DAEMONS)
def test_a_used_port_is_one_sentence_and_nothing_else(target: str, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = run(
            target,
            f"--listen-address=127.0.0.1:{other.getsockname()[1]}",
            "--http-address=127.0.0.1:0",
            f"--{'state' if 'coordinator' in target else 'run'}-directory={tmp_path}/d",
            *([] if "coordinator" in target else ["--node=a", "--simulated-gpus=1MiB"]),
        )
    assert done.returncode not in (0, 1)
    own_lines = [line for line in done.stderr.splitlines() if not line.startswith("I")]
    assert len(own_lines) == 1, done.stderr
    assert "cannot listen on 127.0.0.1:" in own_lines[0]


@pytest.mark.parametrize("target", DAEMONS)
def test_print_config_shows_value_and_source(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HTTP_ADDRESS", "127.0.0.1:9")
    done = run(target, "--listen-address=127.0.0.1:0", "--print-config")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if "http" in line]
    assert lines and "127.0.0.1:9" in lines[0] and "HYPERFRAMES_HTTP_ADDRESS" in lines[0]


def _frames() -> list[bytes]:
    huge = struct.pack("<I", 0xFFFFFFFF)
    return [b"", b"\x01", b"{", huge, huge + b"x" * 64, b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n"]


def test_truncated_and_foreign_messages_to_the_descriptor_socket_do_no_harm(
    shared_cluster: LocalCluster,
) -> None:
    path = shared_cluster.agents["a"].ready["socket"]
    pid = shared_cluster.agents["a"].pid
    for _ in range(5):
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            for frame in _frames():
                with socket.socket(socket.AF_UNIX, kind) as caller:
                    try:
                        caller.connect(path)
                        caller.send(frame)
                    except OSError:
                        continue  # The other kind of socket, or hung up on already.
    process = shared_cluster.agents["a"].process
    assert process is not None and process.poll() is None and process.pid == pid
    job = shared_cluster.wait_job(
        shared_cluster.submit(shell_job("true", 2, placement="PLACEMENT_SPREAD")), 20
    )
    assert job["state"] == "JOB_STATE_SUCCEEDED"


@pytest.mark.parametrize("daemon", ["coordinator", "a"])
@pytest.mark.parametrize("page", ["/livez", "/readyz", "/metrics", "/statusz"])
def test_every_page_answers(shared_cluster: LocalCluster, daemon: str, page: str) -> None:
    if daemon == "coordinator":
        address = shared_cluster.coordinator.ready["http"]
    else:
        address = shared_cluster.agents[daemon].ready["http"]
    with urllib.request.urlopen(f"http://{address}{page}", timeout=5) as answer:
        body = answer.read().decode()
    assert answer.status == 200 and body
    if page == "/metrics":
        assert "hyperframes_" in body


def test_calls_that_are_not_json_of_their_message_are_refused(
    shared_cluster: LocalCluster,
) -> None:
    import hyperframes.errors as errors

    with pytest.raises(errors.InvalidArgument, match="ranks"):
        shared_cluster.call("SubmitJob", {"spec": {"ranks": "many"}})
    with pytest.raises(errors.HyperFramesError, match="NoSuchCall"):
        shared_cluster.call("NoSuchCall", json.loads("{}"))
