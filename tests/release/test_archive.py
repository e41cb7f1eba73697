"""The release archive: whole, small, self-contained, and it runs where nothing is installed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperframes._version import VERSION
from local_cluster import ROOT, LocalCluster, Node
from release import bare_root
from release.unpacked import BARE, MOST_BYTES, run
from summary import load_run

PROGRAMS = ("hfagent", "hfcoordinator", "hfctl", "hfprobe", "hfshim", "hftransfer")
SYSTEM = re.compile(r"(linux-vdso|libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt)\.so\b.*")


@pytest.fixture(scope="module")
def manifest(archive: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((archive / "manifest.json").read_text())
    return read


def test_it_is_small(archive_file: Path) -> None:
    assert archive_file.stat().st_size < MOST_BYTES


def test_it_has_everything_that_a_cluster_needs(archive: Path) -> None:
    for name in (
        *(f"bin/{program}" for program in PROGRAMS),
        "lib/libhyperframes.so", "include/hyperframes.h", "python/hyperframes/__init__.py",
        "python/hyperframes/libhyperframes.so", "examples/train_gpt.py", "README.md",
        "dashboards/hyperframes.json", "dashboards/alerts.yml", "deploy/monitoring/prometheus.yml",
        "deploy/monitoring/grafana/provisioning/dashboards/hyperframes.yml",
    ):  # fmt: skip
        assert (archive / name).is_file(), name
    assert all(os.access(archive / "bin" / program, os.X_OK) for program in PROGRAMS)


def test_the_manifest_lists_every_file_with_its_digest(
    archive: Path, manifest: dict[str, Any]
) -> None:
    found = {
        path.relative_to(archive).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in archive.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name != "manifest.json"
    }
    assert found == manifest["sha256"]
    assert manifest["version"] == VERSION
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include").exists()
    assert ("cuda" in manifest["backends"]) == toolkit


def test_every_program_names_the_same_release(archive: Path) -> None:
    told = {name: run(archive / "bin" / name, "--version").stdout for name in PROGRAMS[:3]}
    assert {name: text.split()[1] for name, text in told.items()} == dict.fromkeys(told, VERSION)
    ask = "import hyperframes as hf; from hyperframes import _native as n; lib = n.library();"
    ask += "print(hf.__version__, lib.version(), lib.path)"
    package, library, path = run(
        sys.executable, "-c", ask, env={"PYTHONPATH": str(archive / "python")}
    ).stdout.split()
    assert (package, library) == (VERSION, VERSION)
    assert Path(path).is_relative_to(archive)


def dependencies(program: Path) -> dict[str, str]:
    """What the loader resolves each need to."""
    lines = run("ldd", program).stdout.splitlines()
    pairs = (re.match(r"\s*(\S+) => (.*?)(?: \(0x[0-9a-f]+\))?$", line) for line in lines)
    return {found.group(1): found.group(2) for found in pairs if found}


@pytest.mark.parametrize("name", [*(f"bin/{p}" for p in PROGRAMS), "lib/libhyperframes.so"])
def test_nothing_but_the_c_and_cpp_runtime_comes_from_the_system(archive: Path, name: str) -> None:
    needed = dependencies(archive / name)
    assert any(SYSTEM.fullmatch(library) for library in needed), "ldd was not understood"
    foreign = {
        library: path
        for library, path in needed.items()
        if not SYSTEM.fullmatch(library)
        and not (Path(path).exists() and Path(path).resolve().is_relative_to(archive))
    }
    assert not foreign


def test_no_bundled_library_has_a_name_that_another_program_may_ask_for(archive: Path) -> None:
    names = {path.name for path in (archive / "lib").iterdir()} - {"libhyperframes.so"}
    assert names and all(name.startswith("hf_") for name in names)


def test_every_bundled_library_comes_with_its_licence(
    archive: Path, manifest: dict[str, Any]
) -> None:
    listed = {library["file"]: library["package"] for library in manifest["libraries"]}
    shipped = {f"lib/{path.name}" for path in (archive / "lib").iterdir()}
    assert shipped - {"lib/libhyperframes.so"} == listed.keys()
    for package in listed.values():
        assert len((archive / "licenses" / f"{package}.txt").read_text()) > 200, package


class BareDaemon:
    """A program of the archive in a bare root, until the block ends."""

    def __init__(self, root: Path, *command: str) -> None:
        self.process = subprocess.Popen(
            bare_root.inside(root, *command), env=BARE, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def ready(self) -> dict[str, str]:
        """The ready line's names and values."""
        said = []
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 30)[0]:
            line = self.process.stdout.readline()
            said.append(line)
            if " ready: " in line:
                return dict(word.split("=", 1) for word in line.split() if "=" in word)
            if not line:
                break
        raise AssertionError(f"no ready line: {''.join(said)}")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def bare(archive: Path, tmp_path: Path) -> Path:
    reason = bare_root.can_be_entered()
    if reason:
        pytest.skip(f"this user cannot change the root: {reason}")
    root = tmp_path / "root"
    bare_root.make(root, archive)
    return root


@contextlib.contextmanager
def bare_cluster(root: Path) -> Iterator[str]:
    """Address of a coordinator with one agent, both in `root`."""
    loopback = ("--listen-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    programs = "/opt/hyperframes/bin/"
    coordinator = BareDaemon(
        root, f"{programs}hfcoordinator", *loopback, "--state-directory=/tmp/state"
    )
    agent = None
    try:
        address = coordinator.ready()["grpc"]
        agent = BareDaemon(
            root, f"{programs}hfagent", *loopback, "--node=bare", f"--coordinator={address}",
            "--run-directory=/tmp/run", "--simulated-gpus=2 x 64MiB",
        )  # fmt: skip
        agent.ready()
        yield address
    finally:
        if agent is not None:
            agent.stop()
        coordinator.stop()


def test_a_job_runs_where_only_a_c_library_is_installed(bare: Path) -> None:
    hfctl = bare_root.inside(bare, "/opt/hyperframes/bin/hfctl")
    with bare_cluster(bare) as address:
        job = (
            "submit", "--coordinator", address, "--ranks", "2", "--wait", "--timeout", "60s", "--",
            "/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE on $HYPERFRAMES_GPU",
        )  # fmt: skip
        submitted = run(*hfctl, *job).stdout
        job_id = re.search(r"job-[0-9a-f]+", submitted)
        assert job_id is not None, submitted
        assert "SUCCEEDED" in submitted
        logs = run(
            *hfctl, "job", "logs", "--coordinator", address, job_id.group(), "--rank", "1"
        ).stdout
        assert re.fullmatch(r"rank 1 of 2 on SIM-bare-[01]\n", logs), logs


def test_the_example_trains_on_the_archives_daemons(archive: Path, run_directory: Path) -> None:
    report = run_directory / "report-{rank}.json"
    with LocalCluster(run_directory, [Node("a", "2 x 256MiB")], programs=archive / "bin") as made:
        done = run(
            archive / "bin/hfctl", "submit", "--coordinator", made.address, "--name", "example",
            "--ranks", "2", "--env", f"PYTHONPATH={archive / 'python'}", "--env",
            "OMP_NUM_THREADS=1", "--wait", "--timeout", "200s", "--", sys.executable,
            archive / "examples/train_gpt.py", "--mode", "hyperframes", "--steps", "2",
            "--layers", "2", "--length", "128", "--activation-budget", "12MiB",
            "--report", report, timeout=240,
        )  # fmt: skip
        assert "SUCCEEDED" in done.stdout
        job_id = re.search(r"job-[0-9a-f]+", done.stdout)
        assert job_id is not None
        assert "step 2/2" in made.whole_log(job_id.group(), 0)
    assert len(load_run(report, 2).losses) == 2


def test_the_readme_of_the_archive_leads_somewhere(
    archive: Path, archive_file: Path, wheel_file: Path
) -> None:
    text = (archive / "README.md").read_text()
    assert text == (ROOT / "README.md").read_text()
    assert {archive_file.name, wheel_file.name} <= set(text.split())
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (archive / target).exists(), target
