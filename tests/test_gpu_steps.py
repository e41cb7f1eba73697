"""The runner of what only GPUs can show: it counts, it ends, and it leaves nothing behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from gpus import run


def test_every_step_is_named_once_and_fits_a_short_lease() -> None:
    names = [step.name for step in run.STEPS]
    assert len(set(names)) == len(names)
    assert all(0 < step.limit_s < 600 and step.shows for step in run.STEPS)


def test_scripts_and_benchmarks_of_the_steps_exist() -> None:
    for step in run.STEPS:
        for word in step.command:
            if word.endswith(".py") or word == "tests/cases":
                assert (run.ROOT / word).exists(), word


def test_without_gpus_every_step_is_skipped_visibly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "gpus_here", lambda: 0)
    assert run.main(["--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"0 passed, 0 failed, {len(run.STEPS)} skipped"
    assert sum(line.startswith("SKIPPED ") for line in lines) == len(run.STEPS)


def test_an_unknown_step_is_named_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="no step pear; there are doctor"):
        run.main(["--steps", "engine,pear"])


def test_a_failed_step_fails_the_run_and_its_last_words_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    steps = (
        run.Step("good", ("python", "-c", "print('fine')"), 60),
        run.Step("bad", ("python", "-c", "raise SystemExit('broken here')"), 60),
    )
    monkeypatch.setattr(run, "STEPS", steps)
    assert run.main(["--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "broken here" in printed and printed.endswith("1 passed, 1 failed, 0 skipped\n")


def test_a_step_whose_tests_were_all_skipped_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    said = "print('[  PASSED  ] 0 tests.'); print('[  SKIPPED ] 5 tests.')"
    monkeypatch.setattr(run, "STEPS", (run.Step("idle", ("python", "-c", said), 60),))
    assert run.main(["--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("0 passed, 0 failed, 1 skipped\n")


def test_a_step_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """Also what is deaf to SIGTERM."""
    program = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    step = run.Step("hangs", ("python", "-c", program), 3)
    log = tmp_path / "log"
    assert run.run_step(step, tmp_path, log) == 124
    child = int(log.read_text().split()[0])
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and _state(child) != "Z":
        assert time.monotonic() < deadline, "a grandchild is left"
        time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_programs_of_the_kit_run_from_there_with_its_library(tmp_path: Path) -> None:
    for name in ("tests/bench/engine", "lib/libhyperframes.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert run.resolved(("tests/bench/engine", "--rounds=1"), tmp_path) == [
        str(tmp_path / "tests/bench/engine"), "--rounds=1",
    ]  # fmt: skip
    assert run.resolved(("python", "x.py"), tmp_path)[0] == sys.executable
    made = run.environment(tmp_path)
    assert made["HYPERFRAMES_LIBRARY"] == str(tmp_path / "lib/libhyperframes.so")
    assert made["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(tmp_path / "lib")
