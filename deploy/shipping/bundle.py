"""Programs together with the shared libraries that they need, so that they run anywhere.

Which libraries those are is read from the programs. The system's C and C++ runtime is not among
them: mixing two of those in one process fails, and every system has it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shipping import elf

_OF_THE_SYSTEM = re.compile(
    r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s)\.so(\.\d+)*"
)
_COMMON_LICENSE = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9])")


@dataclass(frozen=True)
class SystemLibrary:
    """One that is shipped: where it was found, and whose it is."""

    soname: str  # As its users name it: "libssl.so.3".
    path: Path
    package: str
    version: str

    @property
    def shipped_name(self) -> str:
        """A name of our own.

        In a process that has loaded its own libssl.so.3 (Python's ssl module has), the loader would
        otherwise take that one for ours, or ours for that one, whatever their versions are.
        """
        return "hf_" + self.soname.removeprefix("lib")


def _directories() -> list[Path]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    return [Path(root) / multiarch for root in ("/usr/lib", "/lib")] + [Path("/usr/lib")]


def _find(name: str, user: Path) -> Path:
    for directory in _directories():
        path = directory / name
        if path.exists():
            return path.resolve()
    raise FileNotFoundError(f"{user} needs {name}, which is in none of {_directories()}")


def _dpkg_query(*arguments: str) -> str:
    # It exits with 1 where it does not know one of several names, and prints the others.
    command = ["dpkg-query", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _packages_of(paths: Iterable[Path]) -> dict[Path, tuple[str, str]]:
    """Debian's package of each file and its version, by one call each: dpkg reads all its lists.

    Raises:
        FileNotFoundError: no package owns one of them.
    """
    # dpkg may know a file of /usr/lib as one of /lib.
    names = {name: path for path in paths for name in (str(path), str(path).removeprefix("/usr"))}
    owners: dict[Path, str] = {}
    for line in _dpkg_query("--search", *sorted(names)).splitlines():
        packages, _, name = line.rpartition(": ")
        if name in names:
            owners[names[name]] = packages.split(",")[0]
    orphans = sorted(set(names.values()) - owners.keys())
    if orphans:
        raise FileNotFoundError(f"no Debian package owns {orphans}, so their licence is unknown")
    shown = _dpkg_query("--show", "--showformat=${Package} ${Version}\n", *set(owners.values()))
    versions = dict(line.split(" ", 1) for line in shown.splitlines())
    plain = {path: owner.split(":")[0] for path, owner in owners.items()}
    return {path: (package, versions[package]) for path, package in plain.items()}


def libraries_of(programs: Iterable[Path]) -> list[SystemLibrary]:
    """Every library that `programs` and their libraries need, but the system's; sorted by name.

    Raises:
        FileNotFoundError: one is nowhere, or no package owns it.
    """
    found: dict[str, Path] = {}
    waiting = list(programs)
    while waiting:
        user = waiting.pop()
        for name in elf.needed(user):
            if name not in found and not _OF_THE_SYSTEM.fullmatch(name):
                found[name] = _find(name, user)
                waiting.append(found[name])
    packages = _packages_of(found.values())
    return [SystemLibrary(name, found[name], *packages[found[name]]) for name in sorted(found)]


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def ship_programs(
    programs: Mapping[Path, Path], libraries: Iterable[SystemLibrary], folder: Path
) -> None:
    """Writes `programs` (source: target), without debug information, and libraries into `folder`.

    Programs find that folder by the path that they were linked with (SHIPPED_LINKOPTS).
    """
    libraries = list(libraries)
    renamed = {library.soname: library.shipped_name for library in libraries}
    targets = {library.path: folder / library.shipped_name for library in libraries}
    for source, target in {**targets, **programs}.items():
        _copy(source, target, 0o755)
        subprocess.run(["strip", "--strip-debug", str(target)], check=True)
        elf.rename_libraries(target, renamed)


def ship_licenses(libraries: Iterable[SystemLibrary], folder: Path) -> None:
    """The copyright file of each package, and the licences that these refer to by name."""
    referred: set[str] = set()
    for package in sorted({library.package for library in libraries}):
        text = Path("/usr/share/doc", package, "copyright").read_bytes()
        target = folder / f"{package}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        referred.update(_COMMON_LICENSE.findall(text.decode(errors="replace")))
    for name in sorted(referred):
        license_text = Path("/usr/share/common-licenses", name)
        if license_text.exists():  # Some files name licences that Debian no longer has.
            _copy(license_text, folder / "common-licenses" / name, 0o644)
