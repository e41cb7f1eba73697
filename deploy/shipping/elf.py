"""What a program or shared library asks of the system, as binutils' readelf tells it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_STRINGS = re.compile(r"\.dynstr\s+STRTAB\s+[0-9a-f]+\s+([0-9a-f]+)\s+([0-9a-f]+)")
_VERSION = re.compile(r"\bName: (GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\b")


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _readelf(option: str, path: Path) -> str:
    command = ["readelf", "--wide", option, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(path: Path) -> list[str]:
    """Names of the shared libraries that the loader has to find, in its order."""
    return _NEEDED.findall(_readelf("--dynamic", path))


def system_versions(paths: Iterable[Path]) -> dict[str, str]:
    """The newest version of each system library's symbols that any of `paths` asks for.

    {"GLIBC": "2.36", "GLIBCXX": "3.4.30"}: an older system does not run them.
    """
    newest: dict[str, tuple[int, ...]] = {}
    for path in paths:
        for library, text in _VERSION.findall(_readelf("--version-info", path)):
            version = tuple(int(part) for part in text.split("."))
            newest[library] = max(newest.get(library, version), version)
    return {name: ".".join(map(str, version)) for name, version in sorted(newest.items())}


def rename_libraries(path: Path, renamed: Mapping[str, str]) -> None:
    """Rewrites the names of libraries in `path`: those it needs, and its own.

    In place, so each new name is as long as the old one: nothing in the file moves. (patchelf,
    which could do more, wrote wrong names into libraries with many needs: 0.14, Debian 12's.)

    Raises:
        ValueError: a name is longer or shorter, or is not there to be rewritten.
    """
    found = _STRINGS.search(_readelf("--sections", path))
    if found is None:
        raise ValueError(f"{path} has no table of dynamic strings")
    start, size = (int(text, 16) for text in found.groups())
    content = path.read_bytes()
    strings = content[start : start + size]
    for old, new in renamed.items():
        if len(old) != len(new):
            raise ValueError(f"{new} is not as long as {old}")
        # With both ends: the tail of a longer name is not meant.
        strings = strings.replace(b"\0%s\0" % old.encode(), b"\0%s\0" % new.encode())
    path.write_bytes(content[:start] + strings + content[start + size :])
    left = [name for name in needed(path) if name in renamed]
    if left:
        raise ValueError(f"{path} still needs {', '.join(left)}")
