"""Checkpoints as folders: names, durable writes, digests, which one is the latest.

``step-00000050/manifest.json`` in a folder of that name means that every rank's files are durable:
the folder gets its name only after all of them are, and the name is given by one rename. All that
is under way, or on its way out, has a name that begins with a dot.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._failpoints import failpoint
from .errors import DataLoss, FailedPrecondition

MANIFEST = "manifest.json"
LATEST = "LATEST"
TENSORS = "tensors"
_NAME = re.compile(r"^step-(\d{8,18})$")
_ON_ITS_WAY = re.compile(r"^\.step-\d{8,18}\.[A-Za-z0-9_-]+\.(partial|removed)$")
_READ_BYTES = 1 << 20
_LOCK_WAIT_S = 20.0  # The process that was killed a moment ago may still be on its way out.


def folder_name(step: int) -> str:
    """Of the complete checkpoint after ``step`` optimizer steps."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a complete checkpoint's folder; None: it is not the name of one."""
    found = _NAME.match(name)
    return int(found.group(1)) if found else None


def partial_name(step: int, checkpoint_id: str) -> str:
    """Of a checkpoint that is being written."""
    return f".{folder_name(step)}.{re.sub(r'[^A-Za-z0-9_-]', '-', checkpoint_id)}.partial"


def fsync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes, point: str) -> None:
    """All of ``data`` under the name, or the name as it was, whatever happens meanwhile."""
    temporary = path.with_name(path.name + ".temporary")
    failpoint(f"{point}.write.before")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        failpoint(f"{point}.write.after")
        os.fsync(file.fileno())
    failpoint(f"{point}.fsync.after")
    os.rename(temporary, path)
    failpoint(f"{point}.rename.after")
    fsync_folder(path.parent)
    failpoint(f"{point}.parent.after")


def digest_of(data: bytes) -> str:
    """SHA-256, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> dict[str, Any]:
    """``{"bytes": size, "sha256": digest}``."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def check_file(path: Path, expected: dict[str, Any]) -> None:
    """DataLoss: the file is missing, or is not what was written."""
    try:
        found = digest_file(path)
    except OSError as error:
        raise DataLoss(f"{path} cannot be read: {error.strerror}.") from error
    for key in ("bytes", "sha256"):
        if found[key] != expected[key]:
            raise DataLoss(f"{path} is damaged: {key} {found[key]}, written were {expected[key]}.")


def read_json(path: Path, expected_digest: str | None = None) -> dict[str, Any]:
    """DataLoss: missing, no JSON object, or another digest than expected."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataLoss(f"{path} cannot be read: {error.strerror}.") from error
    if expected_digest is not None and digest_of(data) != expected_digest:
        raise DataLoss(f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}.")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise DataLoss(f"{path} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise DataLoss(f"{path} is damaged: no JSON object.")
    return value


def complete(directory: Path) -> list[str]:
    """Names of the folders that are complete as far as their names tell, newest first."""
    found = [(step, entry.name) for entry in _entries(directory)
             if (step := step_of(entry.name)) is not None]  # fmt: skip
    return [name for _, name in sorted(found, reverse=True)]


def read_latest(directory: Path) -> tuple[str | None, str]:
    """The name in LATEST; None with the reason where there is none to trust."""
    try:
        raw = (directory / LATEST).read_bytes()
    except FileNotFoundError:
        return None, f"{directory / LATEST} is missing"
    except OSError as error:
        return None, f"{directory / LATEST} cannot be read ({error.strerror})"
    name = raw[:64].decode("ascii", "replace").strip()
    if step_of(name) is None:
        return None, f"{directory / LATEST} names no checkpoint"
    if not (directory / name).is_dir():
        return None, f"{directory / LATEST} names {name}, which is not there"
    return name, ""


def write_latest(directory: Path, name: str) -> None:
    """From now on ``name`` is the one to resume from."""
    write_durably(directory / LATEST, f"{name}\n".encode(), "latest")


def publish(partial: Path, final: Path) -> None:
    """Gives the folder its final name. One in the way is moved aside, and deleted afterwards."""
    aside = None
    if final.exists():
        aside = _way_out(final)
        failpoint("aside.rename.before")
        os.rename(final, aside)
        failpoint("aside.rename.after")
    failpoint("publish.rename.before")
    os.rename(partial, final)
    failpoint("publish.rename.after")
    fsync_folder(final.parent)
    failpoint("publish.parent.after")
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def remove(folder: Path) -> None:
    """Deletes a complete checkpoint: first the name, so that no half of it is ever resumed from."""
    doomed = _way_out(folder)
    os.rename(folder, doomed)
    fsync_folder(folder.parent)
    failpoint("remove.rename.after")
    shutil.rmtree(doomed, ignore_errors=True)
    failpoint("remove.delete.after")


def clean(directory: Path, under_way: str = "") -> int:
    """Deletes what was left behind by saves and removals that did not end; how many."""
    stale = [entry for entry in _entries(directory)
             if _ON_ITS_WAY.match(entry.name) and entry.name != under_way]  # fmt: skip
    for entry in stale:
        shutil.rmtree(entry, ignore_errors=True)
    return len(stale)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _way_out(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.removed")


class DirectoryLock:
    """One training at a time writes into a directory. Released by the process's end, however."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ".lock"
        self._descriptor = -1

    def acquire(
        self, wait_s: float = _LOCK_WAIT_S, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """FailedPrecondition: another process holds it, and still does after ``wait_s``."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_s
        # A record lock, not flock: data loader workers that are forked later do not inherit it.
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() < deadline:
                    pause(0.1)
                    continue
                owner = os.pread(self._descriptor, 200, 0).decode("ascii", "replace").strip()
                self.release()
                raise FailedPrecondition(
                    f"{self._path.parent} is in use by another training ({owner or 'unknown'}): "
                    "give this one a directory of its own, or end the other first."
                ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)

    def release(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
