"""A root file system that holds a C and C++ runtime, a shell, and what is to be tried in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

RUNTIME = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0")
LOADER = "/lib64/ld-linux-x86-64.so.2"
SHELL_TOOLS = ("sh", "echo")
# In a mount namespace of its own: nothing is left mounted, however the program ends.
_ENTER = (
    'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && root=$0 && exec chroot '
    '"$root" "$@"'
)


def can_be_entered() -> str:
    """Empty, or why this user cannot change the root."""
    command = ["unshare", "--mount", "chroot", "/", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError as missing:
        return str(missing)
    return "" if done.returncode == 0 else done.stderr.strip() or "unshare failed"


def _runtime_paths() -> list[Path]:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    found = []
    for name in RUNTIME:
        at = re.search(rf"\s{re.escape(name)} \(libc6,x86-64.*=> (\S+)", listed.stdout)
        assert at is not None, f"{name} is not in the loader's cache"
        found.append(Path(at.group(1)))
    return found


def make(root: Path, archive: Path) -> None:
    """Fills `root`; the archive is at /opt/hyperframes in it."""
    for name in ("proc", "dev", "tmp", "lib64", "bin", "lib/x86_64-linux-gnu"):
        (root / name).mkdir(parents=True)
    for path in _runtime_paths():
        shutil.copy(path, root / "lib/x86_64-linux-gnu" / path.name)
    shutil.copy(LOADER, root / LOADER.lstrip("/"))
    for tool in SHELL_TOOLS:
        found = shutil.which(tool, path="/bin:/usr/bin")
        assert found is not None
        shutil.copy(found, root / "bin" / tool)
    shutil.copytree(archive, root / "opt/hyperframes", symlinks=True)


def inside(root: Path, *command: str) -> list[str]:
    """The command line that runs `command` with `root` as its root."""
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        _ENTER,
        str(root),
        *command,
    ]
