"""The Python wheel: its record, an installation without a network, and its life among others."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from hyperframes._version import VERSION
from local_cluster import ROOT
from release.unpacked import MOST_BYTES, run

INFO = f"hyperframes-{VERSION}.dist-info"
BINDING = re.compile(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: \w+ symbol `([^']+)'")
RUNTIME = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|ld-linux-x86-64)\.so\b.*")
# Constants that the C++ library's headers put into every program, the same in all of them: the
# loader uses whichever came first.
OF_THE_HEADERS = re.compile(r"_ZZ?NK?St")


def test_it_is_small_and_its_record_is_right(wheel_file: Path) -> None:
    assert wheel_file.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel_file) as wheel:
        rows = list(csv.reader(wheel.read(f"{INFO}/RECORD").decode().splitlines()))
        assert sorted(name for name, _, _ in rows) == sorted(wheel.namelist())
        for name, digest, size in rows:
            if name == f"{INFO}/RECORD":
                assert (digest, size) == ("", "")
                continue
            content = wheel.read(name)
            wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            assert (digest, int(size)) == (f"sha256={wanted.decode()}", len(content)), name


def test_it_asks_for_torch_and_for_nothing_else(wheel_file: Path) -> None:
    with zipfile.ZipFile(wheel_file) as wheel:
        metadata = wheel.read(f"{INFO}/METADATA").decode().split("\n\n")[0]
        assert f"{INFO}/entry_points.txt" not in wheel.namelist()
    assert re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE) == ["torch>=2.4"]
    assert f"\nVersion: {VERSION}\n" in metadata


def test_packing_again_gives_the_same_bytes(wheel_file: Path, tmp_path: Path) -> None:
    again = tmp_path / wheel_file.name
    package = ROOT / "client/python/hyperframes"
    library = Path("bazel-bin/client/c/libhyperframes.so")
    inputs = [*package.glob("*.py"), package / "py.typed"]
    command = [
        "/usr/bin/python3", "-m", "shipping.wheel", f"--version={VERSION}", f"--output={again}",
        f"--tag={wheel_file.stem.split('-', 2)[2]}", "--project=client/python/pyproject.toml",
        "--readme=README.md", "--output-root=bazel-bin", "--copy=client/c/=hyperframes/",
        "--copy=client/python/=", str(library),
        *(str(path.relative_to(ROOT)) for path in sorted(inputs, reverse=True)),
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": "deploy"})
    assert again.read_bytes() == wheel_file.read_bytes()


def test_it_installs_without_a_network_and_tells_its_version(wheel_python: Path) -> None:
    told = run(wheel_python, "-c", "import hyperframes as hf; print(hf.__version__, hf.__file__)")
    version, path = told.stdout.split()
    assert version == VERSION
    assert Path(path).is_relative_to(wheel_python.parents[1])


def test_the_example_trains_with_it(wheel_python: Path) -> None:
    done = run(
        wheel_python, ROOT / "examples/train_gpt.py", "--mode", "hyperframes", "--steps", "2",
        "--layers", "2", "--length", "128",
        env={"HYPERFRAMES_HOST_DEVICES": "2 x 256MiB"},
    )  # fmt: skip
    assert "step 2/2" in done.stdout


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_it_and_other_libraries_of_the_same_kind_do_not_mix(
    wheel_python: Path, neighbours: Path, tmp_path: Path, first: str
) -> None:
    done = run(
        wheel_python, Path(__file__).with_name("beside_others.py"), first,
        env={
            "PYTHONPATH": str(neighbours),
            "LD_DEBUG": "bindings",
            "LD_DEBUG_OUTPUT": str(tmp_path / "loader"),
            "LD_BIND_NOW": "1",
        },
    )  # fmt: skip
    assert "both worked" in done.stdout
    mixed: dict[tuple[str, str], set[str]] = {}
    own = 0
    for log in tmp_path.glob("loader.*"):
        for user, owner, symbol in BINDING.findall(log.read_text(errors="replace")):
            sides = ["/site-packages/hyperframes/" in path for path in (user, owner)]
            own += all(sides)
            harmless = RUNTIME.fullmatch(Path(owner).name) or OF_THE_HEADERS.match(symbol)
            if sides[0] != sides[1] and not harmless and not symbol.startswith("hf_"):
                mixed.setdefault((Path(user).name, Path(owner).name), set()).add(symbol)
    assert own > 1000, "the loader's log was not understood"
    assert not mixed, {names: sorted(symbols)[:5] for names, symbols in mixed.items()}
