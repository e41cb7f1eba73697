"""The quick start itself, with fewer steps: it compares everything it promises and says so."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from local_cluster import ROOT, process_environments


def test_the_quick_start_holds_what_it_promises(tmp_path: Path) -> None:
    mark = f"HYPERFRAMES_TEST_MARK={tmp_path}"
    done = subprocess.run(
        ["./deploy/quickstart.sh", "--steps", "5", "--results", str(tmp_path / "results")],
        cwd=ROOT,
        env={**os.environ, "HYPERFRAMES_TEST_MARK": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "All of it held." in done.stdout
    page = (tmp_path / "results" / "memory.html").read_text()
    assert page.count("<polyline") == 3 and "http" not in page.replace("http-equiv", "")
    left = [pid for pid, env in process_environments() if mark.encode() in env]
    assert not _without_bazel(left), "processes of the quick start are still there"


def _without_bazel(pids: list[int]) -> list[int]:
    """Bazel's server stays on purpose, for the next build."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    return [pid for pid, name in names.items() if b"bazel" not in name]
