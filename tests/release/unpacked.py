"""Where what is shipped was built, and how its programs are run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from local_cluster import ROOT

BUILT = ROOT / "bazel-bin" / "deploy"
CACHE = Path(os.environ.get("HYPERFRAMES_CACHE", Path.home() / ".cache" / "hyperframes"))
# Nothing of this shell: no LD_LIBRARY_PATH, no PYTHONPATH, no HYPERFRAMES_*.
BARE = {"HOME": "/tmp", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "OMP_NUM_THREADS": "1"}
MOST_BYTES = 50 * 10**6


def run(
    *command: str | Path, env: dict[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """With an environment of almost nothing, in a directory that holds nothing of ours."""
    done = subprocess.run(
        [str(part) for part in command], env={**BARE, **(env or {})}, cwd="/",
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def built(name: str) -> Path:
    path = BUILT / name
    assert path.exists(), f"{path} is missing: bazel build //deploy:release //deploy:wheel"
    return path
