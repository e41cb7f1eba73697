"""What is shipped, unpacked and installed as a user would do it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hyperframes._version import VERSION
from release.unpacked import CACHE, built, run


@pytest.fixture(scope="session")
def archive_file() -> Path:
    return built(f"hyperframes-{VERSION}-linux-x86_64.tar.gz")


@pytest.fixture(scope="session")
def archive(archive_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive's one folder."""
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(archive_file) as packed:
        packed.extractall(folder, filter="tar")
    (only,) = folder.iterdir()
    return only


@pytest.fixture(scope="session")
def wheel_file() -> Path:
    return built(f"hyperframes-{VERSION}-py3-none-manylinux_2_36_x86_64.whl")


@pytest.fixture(scope="session")
def wheel_python(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel in it, and torch from this one."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        "--no-cache-dir", wheel_file,
    )  # fmt: skip
    (site,) = venv.glob("lib/python3*/site-packages")
    outer = run(sys.executable, "-c", "import site; print(site.getsitepackages()[0])").stdout
    (site / "torch-from-here.pth").write_text(outer)
    return python


@pytest.fixture(scope="session")
def neighbours() -> Path:
    """A folder with Python's own gRPC and protobuf, kept in the cache once it was downloaded."""
    wanted = Path(__file__).with_name("requirements.txt")
    folder = CACHE / f"neighbours-{hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]}"
    if not (folder / ".complete").exists():
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input",
                "--retries", "1", "--upgrade", "--target", str(folder), "-r", str(wanted),
            ],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            pytest.skip(f"no gRPC to be had from PyPI: {done.stderr[-300:]}")
        (folder / ".complete").touch()
    return folder
