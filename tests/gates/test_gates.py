"""The house rules that a machine can check, each as one test.

Run after a build: the C++ gates need the headers that protoc generates. Files that passed are
remembered under the cache by the content of everything they include from this tree, so that a
second run checks only what changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("HYPERFRAMES_CACHE", Path.home() / ".cache" / "hyperframes")) / "gates"
PROTO_HEADERS = ROOT / "bazel-bin" / "proto" / "hyperframes" / "v1" / "_virtual_includes"
CUDA_HEADERS = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
ROOMS = ("agent", "client", "common", "coordinator")
CPP = (*ROOMS, "tests")
# Rooms whose tests are linted as well: those whose tests play with raw memory and with threads.
# A cold file costs 6 s of processor time (measured): the sources take 20 minutes of it, these tests
# 2; those of the other rooms (8 to 15 s each) would add 8.
LINTED_TESTS = ("agent/arena", "agent/device", "agent/engine")
# What a linter's rule about speed or about the width of an index is worth in a test: nothing.
NOT_IN_TESTS = "--checks=-performance-*,-bugprone-narrowing-conversions"
PYTHON = ("client/python", "examples", "deploy", "dashboards", "tests")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
WARNINGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wthread-safety", "-Wthread-safety-beta")


def sources(rooms: Iterable[str], *suffixes: str) -> list[Path]:
    found = (p for room in rooms for suffix in suffixes for p in (ROOT / room).rglob(f"*{suffix}"))
    return sorted(p for p in found if "bazel_shims" not in p.parts)


def run(*command: str | Path) -> str:
    """Empty when the command succeeds, else the end of what it said."""
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-3000:] or "failed silently"


def included(path: Path, seen: dict[Path, bytes]) -> dict[Path, bytes]:
    """`path` and every file of this tree that it includes, with their contents."""
    if path in seen or not path.exists():
        return seen
    seen[path] = path.read_bytes()
    for name in INCLUDE.findall(seen[path].decode()):
        if name.startswith("hyperframes/v1/"):
            seen.update({p: p.read_bytes() for p in (ROOT / "proto").rglob("*.proto")})
        else:
            included(ROOT / name, seen)
    return seen


def checked_once(paths: list[Path], salt: str, check: Callable[[Path], str]) -> list[str]:
    """What `check` says about each of `paths` that has changed since it last passed."""
    CACHE.mkdir(parents=True, exist_ok=True)

    def one(path: Path) -> str:
        digest = hashlib.sha256(salt.encode())
        for name, content in sorted(included(path, {}).items()):
            digest.update(str(name.relative_to(ROOT)).encode() + b"\0" + content)
        stamp = CACHE / digest.hexdigest()
        if stamp.exists():
            return ""
        said = check(path)
        if not said:
            stamp.touch()
        return said

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [said for said in pool.map(one, paths) if said]


def include_flags() -> list[str]:
    assert PROTO_HEADERS.is_dir(), f"{PROTO_HEADERS} is missing: build first (bazel build //...)"
    cuda = [f"-isystem{CUDA_HEADERS}"] if CUDA_HEADERS.is_dir() else []
    return [f"-I{ROOT}", *(f"-I{folder}" for folder in sorted(PROTO_HEADERS.iterdir())), *cuda]


def compiled(paths: list[Path]) -> list[Path]:
    """Those that a build here compiles: without a toolkit most of the CUDA backend is left out."""
    if CUDA_HEADERS.is_dir():
        return paths
    return [
        path
        for path in paths
        if not any(b"#include <cuda.h>" in text for text in included(path, {}).values())
    ]


def test_python_has_no_lint() -> None:
    assert not run(sys.executable, "-m", "ruff", "check", "--no-cache", *PYTHON)


def test_python_is_formatted() -> None:
    assert not run(sys.executable, "-m", "ruff", "format", "--check", "--no-cache", *PYTHON)


def test_the_package_passes_mypy_strict() -> None:
    assert not run(
        sys.executable, "-m", "mypy", "--strict", "--cache-dir", CACHE / "mypy",
        "client/python/hyperframes",
    )  # fmt: skip


def test_examples_and_test_tools_pass_mypy_strict() -> None:
    assert not run(
        sys.executable, "-m", "mypy", "--strict", "--cache-dir", CACHE / "mypy",
        *sources(("client/python/tests", "examples", "deploy", "dashboards", "tests"), ".py"),
    )  # fmt: skip


def test_cpp_is_formatted() -> None:
    files = sources(CPP, ".cc", ".h", ".c")
    assert not run("clang-format-14", "--dry-run", "-Werror", *files)


def clang_tidy(paths: list[Path], *options: str) -> None:
    flags = [*WARNINGS, *include_flags()]
    said = checked_once(
        compiled(paths),
        " ".join(("clang-tidy", *WARNINGS, *options, (ROOT / ".clang-tidy").read_text())),
        lambda path: run("clang-tidy-14", "--quiet", *options, path, "--", *flags),
    )
    assert not said, "\n".join(said[:10])


def is_test(path: Path) -> bool:
    return path.name.endswith("_test.cc")


def test_every_source_passes_clang_tidy_and_its_locks_thread_safety() -> None:
    clang_tidy([path for path in sources(CPP, ".cc") if not is_test(path)])


def test_tests_of_memory_and_threads_pass_clang_tidy() -> None:
    clang_tidy([path for path in sources(LINTED_TESTS, ".cc") if is_test(path)], NOT_IN_TESTS)


def test_the_locks_of_all_other_tests_pass_clang_thread_safety() -> None:
    linted = set(sources(LINTED_TESTS, ".cc"))
    flags = [*WARNINGS, *include_flags()]
    said = checked_once(
        compiled([p for p in sources(CPP, ".cc") if is_test(p) and p not in linted]),
        "thread-safety " + " ".join(WARNINGS),
        lambda path: run("clang++-14", "-fsyntax-only", *flags, path),
    )
    assert not said, "\n".join(said[:10])


def test_no_file_is_too_long_to_read() -> None:
    limits = {".cc": 500, ".py": 500, ".h": 150}
    found = [p for room in (*CPP, *PYTHON) for s in limits for p in (ROOT / room).rglob(f"*{s}")]
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(set(found))}
    wrong = [
        f"{path.relative_to(ROOT)} has {length} lines of at most {limits[path.suffix]}: split it"
        for path, length in lengths.items()
        if length > limits[path.suffix]
    ]
    assert not wrong, "\n".join(wrong)


def test_rooms_include_only_downwards() -> None:
    forbidden = {
        "common": ("agent/", "coordinator/", "client/"),
        "coordinator": ("agent/", "client/"),
        "agent": ("coordinator/", "client/"),
        "coordinator/planner": ("hyperframes/v1/", "agent/", "client/"),
        "agent/engine": ("hyperframes/v1/",),
        "agent/device": ("hyperframes/v1/", "agent/engine/", "agent/arena/"),
    }
    wrong = [
        f"{path.relative_to(ROOT)} includes {name}"
        for room, above in forbidden.items()
        for path in sources((room,), ".cc", ".h")
        for name in INCLUDE.findall(path.read_text())
        if name.startswith(above)
    ]
    assert not wrong, "\n".join(wrong)
