"""Every command of the README runs: ```sh blocks, in their order, on free ports.

The two whole-machine commands are the exception: this test is part of `tests/run.sh`, and
`deploy/quickstart.sh` has a test of its own.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster import ROOT

WHOLE_MACHINE = ("./deploy/quickstart.sh", "./tests/run.sh")
BLOCK = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    return BLOCK.findall((ROOT / "README.md").read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def script(run_directory: Path, coordinator: str) -> str:
    """The README's commands, with a wait for each daemon and their end by pid."""
    lines = ["set -eu", "daemons=()", "trap 'kill \"${daemons[@]}\" 2>/dev/null; wait' EXIT"]
    for number, block in enumerate(blocks()):
        for line in block.strip().splitlines():
            if line.startswith((*WHOLE_MACHINE, "bazel build")):
                continue
            line = line.replace("/tmp/hf-demo", str(run_directory))
            if not line.endswith("&"):
                lines.append(line)
                continue
            own = coordinator if "hfcoordinator" in line else "127.0.0.1:0"
            ready = run_directory / f"ready-{number}-{len(lines)}"
            lines += [
                f"HYPERFRAMES_LISTEN_ADDRESS={own} HYPERFRAMES_HTTP_ADDRESS=127.0.0.1:0"
                f" {line[:-1]} >{ready} &",
                "daemons+=($!)",
                f"for _ in $(seq 300); do grep -q ready: {ready} && break; sleep 0.1; done",
                f"grep ready: {ready}",
            ]
            # Not before: a program that finds it attaches to that coordinator.
            if "hfcoordinator" in line:
                lines.append(f"export HYPERFRAMES_COORDINATOR={coordinator}")
    return "\n".join(lines)


def test_every_command_of_the_readme_runs(run_directory: Path) -> None:
    coordinator = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        ["bash", "-c", script(run_directory, coordinator)],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # python3 has torch.
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ALIVE" in done.stdout and "SIM-a-1" in done.stdout
    assert "hello" in done.stdout
    assert "hyperframes:" in done.stdout and "activation peak" in done.stdout, "the example"


def test_commands_that_are_not_run_here_exist_and_are_all_there_is_to_it() -> None:
    commands = [line for block in blocks() for line in block.strip().splitlines()]
    assert len(commands) >= 8, "the README's blocks were not found"
    for command in WHOLE_MACHINE:
        assert any(line.startswith(command) for line in commands)
        assert os.access(ROOT / command, os.X_OK)


FLAG = re.compile(r"^  --([a-z-]+)(?:=\w+)?\n      (.*)$", re.MULTILINE)
DEFAULT = re.compile(r"\(default (.*)\)$")
OF_EVERY_PROGRAM = {"config", "version", "print-config"}


def flags_of(program: str) -> dict[str, str]:
    """Name and default of each flag that --help lists."""
    help_text = subprocess.run(
        [ROOT / "bazel-bin" / program, "--help"], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for name, meaning in FLAG.findall(help_text):
        default = DEFAULT.search(meaning)
        found[name] = default.group(1) if default else ""
    return {name: value for name, value in found.items() if name not in OF_EVERY_PROGRAM}


def table_of(program: str) -> dict[str, str]:
    """The same of the README's table; a row may have several flags."""
    text = (ROOT / "README.md").read_text()
    table = text.split(f"\n| {program} | default | meaning |\n", 1)[1].split("\n\n", 1)[0]
    found: dict[str, str] = {}
    for row in table.splitlines()[1:]:
        names, defaults = (re.findall(r"`([^`]*)`", cell) for cell in row.split("|")[1:3])
        defaults = (defaults or [""]) * (len(names) if len(defaults) < 2 else 1)
        found.update(zip((name.removeprefix("--") for name in names), defaults, strict=True))
    return found


@pytest.mark.parametrize("program", ["coordinator/hfcoordinator", "agent/hfagent"])
def test_the_tables_of_flags_are_those_of_help(program: str) -> None:
    told, written = flags_of(program), table_of(program.split("/")[1])
    assert told.keys() == written.keys()
    normal = {"1m": "60s", "0B": "0"}
    differing = {
        name: (value, written[name])
        for name, value in told.items()
        if normal.get(value, value) != written[name]
    }
    assert not differing


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    assert targets
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing
