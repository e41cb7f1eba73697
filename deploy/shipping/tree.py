"""A folder of files that is going to be shipped, filled from the build's inputs."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shipping import bundle, elf


@dataclass(frozen=True)
class Rule:
    """Files below `source` go below `target`."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        source, equals, target = text.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{text!r} is not SOURCE=TARGET")
        return cls(source, target)


def place(path: Path, rules: Sequence[Rule], output_root: str) -> str:
    """Where in the tree an input of the build goes, by the first rule that fits.

    Raises:
        ValueError: no rule fits.
    """
    name = str(path).removeprefix(output_root.rstrip("/") + "/")
    for rule in rules:
        is_folder = rule.source == "" or rule.source.endswith("/")
        if name == rule.source or (is_folder and name.startswith(rule.source)):
            return rule.target + name[len(rule.source) :]
    raise ValueError(f"no --copy says where {name} goes")


@dataclass(frozen=True)
class Shipped:
    """What `fill` has put into the tree."""

    libraries: tuple[bundle.SystemLibrary, ...]
    system_versions: dict[str, str]


def fill(
    tree: Path,
    inputs: Iterable[Path],
    rules: Sequence[Rule],
    output_root: str,
    libraries_at: str,
) -> Shipped:
    """Copies every input to its place; programs get their libraries, in `libraries_at`."""
    programs: dict[Path, Path] = {}
    for path in inputs:
        target = tree / place(path, rules, output_root)
        if elf.is_elf(path):
            programs[path] = target
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        target.chmod(0o644)
    libraries = bundle.libraries_of(programs)
    bundle.ship_programs(programs, libraries, tree / libraries_at)
    needs = elf.system_versions([*programs.values(), *(tree / libraries_at).iterdir()])
    return Shipped(tuple(libraries), needs)


def files(tree: Path) -> Iterator[tuple[str, Path]]:
    """Name in the tree and path of every file and link, sorted by name."""
    found = (path for path in tree.rglob("*") if path.is_symlink() or path.is_file())
    yield from sorted((path.relative_to(tree).as_posix(), path) for path in found)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
