"""The runner of what only GPUs can show: it counts, it ends, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from bench import finetune, llama
from gpus import merge, run
from gpus.steps import Step
from hyperframes import _native


def test_every_step_is_named_once_and_fits_a_short_lease() -> None:
    names = [step.name for step in run.STEPS]
    assert len(set(names)) == len(names)
    assert all(0 < step.limit_s < 600 and step.shows for step in run.STEPS)


def test_scripts_and_benchmarks_of_the_steps_exist() -> None:
    for step in run.STEPS:
        for word in step.command:
            if word.removeprefix("--ignore=").endswith(".py") or word == "tests/cases":
                assert (run.ROOT / word.removeprefix("--ignore=")).exists(), word


def test_benchmarks_of_the_steps_know_their_flags_and_modes() -> None:
    for module, script in ((finetune, "tests/bench/finetune.py"), (llama, "tests/bench/llama.py")):
        commands = [step.command[2:] for step in run.STEPS if script in step.command]
        assert len(commands) > 1
        for words in commands:
            module.parse([*words, "--tiny"])  # An unknown one would end this.


def test_without_gpus_every_step_is_skipped_visibly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "gpus_here", lambda: 0)
    assert run.main(["--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"0 passed, 0 failed, {len(run.STEPS)} skipped"
    assert len({line for line in lines if line.startswith("SKIPPED ")}) == len(run.STEPS)


def test_an_unknown_step_is_named_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="no step pear; there are doctor"):
        run.main(["--steps", "engine,pear"])


def test_a_failed_step_fails_the_run_and_its_last_words_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    steps = (
        Step("good", ("python", "-c", "print('fine')"), 60),
        Step("bad", ("python", "-c", "raise SystemExit('broken here')"), 60),
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
    monkeypatch.setattr(run, "STEPS", (Step("idle", ("python", "-c", said), 60),))
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
    step = Step("hangs", ("python", "-c", program), 3)
    log = tmp_path / "log"
    assert run.run_step(step, tmp_path, log) == 124
    assert "Fatal Python error: Aborted" in log.read_text(), "it says where it was"
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


def test_jobs_find_the_library_of_the_kit_without_a_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The agent passes none of its settings on to workers."""
    library = tmp_path / "release/lib/libhyperframes.so"
    library.parent.mkdir(parents=True)
    library.touch()
    with tarfile.open(tmp_path / "kit.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "release", "release")
    programs = run.unpacked(tmp_path / "kit.tar.gz", tmp_path / "kit")
    run.link_programs(programs, tmp_path / "bazel-bin")
    monkeypatch.delenv("HYPERFRAMES_LIBRARY", raising=False)
    inside = [path.relative_to(run.ROOT) for path in _native.library_candidates()]
    assert any((tmp_path / path).exists() for path in inside), inside


def ends_within(pid: int, seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def runner_of(tmp_path: Path, *words: str) -> run.Runner:
    args = run.parse([f"--output={tmp_path}", *words])
    return run.Runner(args, tmp_path, gpus=2, until=time.monotonic() + 100)


def test_a_daemon_in_a_session_of_its_own_is_ended_after_its_step(tmp_path: Path) -> None:
    """As clusters start theirs; it would keep memory of a GPU."""
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
    )
    script = (
        "import ctypes, pathlib, sys\n"
        "from gpus import run\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "from test_gpu_steps import runner_of\n"
        "step = run.Step('leaves', ('python', '-c', sys.argv[2]), 60)\n"
        "runner_of(pathlib.Path(sys.argv[1])).run([step])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), program], capture_output=True, text=True,
        timeout=120, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "1 processes were left, and ended" in done.stdout
    assert ends_within(int((tmp_path / "leaves.log").read_text().split()[0]))


def test_steps_joined_by_a_plus_run_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each ends only when it has seen the other."""
    program = (
        "import pathlib, sys, time\n"
        f"place = pathlib.Path({str(tmp_path)!r})\n"
        "(place / sys.argv[1]).touch()\n"
        "while not (place / sys.argv[2]).exists(): time.sleep(0.01)\n"
    )
    steps = tuple(
        Step(own, ("python", "-c", program, own, other), 60)
        for own, other in (("a", "b"), ("b", "a"))
    )
    monkeypatch.setattr(run, "STEPS", steps)
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    assert run.main([f"--output={tmp_path}", "--steps=a+b"]) == 0


def test_a_step_without_time_is_not_begun_and_a_missing_program_is_one_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = (
        Step("absent", ("no-such-program",), 60),
        Step("long", ("python", "-c", "pass"), 60, expected_s=50),
        Step("short", ("python", "-c", "pass"), 60, expected_s=1),
    )
    monkeypatch.setattr(run, "STEPS", steps)
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    assert run.main([f"--output={tmp_path}", "--seconds=30"]) == 1
    printed = capsys.readouterr().out
    assert "absent does not start" in printed and "SKIPPED long: takes 50 s" in printed
    assert printed.endswith("1 passed, 1 failed, 1 skipped\n")


def test_results_are_collected_in_two_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = tmp_path / "tree/docs/benchmarks"
    figures.mkdir(parents=True)
    (figures / "old.json").write_text('{"ratios": {"old": 1}}')
    os.utime(figures / "old.json", (1, 1))
    program = f"open({str(figures / 'new.json')!r}, 'w').write('{{\"ratios\": {{\"new\": 0.5}}}}')"
    monkeypatch.setattr(run, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(run, "STEPS", (Step("writes", ("python", "-c", program), 60),))
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    out = tmp_path / "out"
    assert run.main([f"--output={tmp_path / 'logs'}", f"--collect={out}"]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["results.tar.gz", "summary.txt"]
    with tarfile.open(out / "results.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["results/new.json", "results/writes.log"]
    assert "new.json new 0.5000" in (out / "summary.txt").read_text()


def test_the_kit_replaces_a_link_that_leads_nowhere_but_not_a_build(tmp_path: Path) -> None:
    kit, built, link = tmp_path / "dist/kit/x", tmp_path / "built", tmp_path / "bazel-bin"
    kit.mkdir(parents=True)
    built.mkdir()
    link.symlink_to(tmp_path / "gone")
    run.link_programs(kit, link)
    assert link.resolve() == kit
    run.link_programs(kit, link)
    link.unlink()
    link.symlink_to(built)
    run.link_programs(kit, link)
    assert link.resolve() == built


def test_results_of_two_machines_are_merged_row_by_row() -> None:
    def row(length: int, value: str) -> dict[str, object]:
        return {"part": "modes", "length": length, "mode": "peer", "command": value}

    base = {"name": "finetune", "rows": [row(1, "old"), row(2, "old")], "ratios": {}}
    first = {"name": "finetune", "rows": [row(1, "new"), row(2, "old")], "ratios": {}}
    second = {"name": "finetune", "rows": [row(1, "old"), row(2, "old"), row(3, "new")]}
    report = merge.merged(finetune, base, [first, second])
    assert [r["command"] for r in report["rows"]] == ["new", "old", "new"]
    carried = {"commit": "b", "rows": [{**row(1, "carried"), "commit": "a"}]}
    assert merge.merged(finetune, base, [first, carried])["rows"] == first["rows"]


def test_one_gpu_is_taken_as_two_by_the_steps_that_can_and_every_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import os; print(os.environ.get('HYPERFRAMES_CUDA_LIBRARY', 'none'))"
    steps = tuple(
        Step(name, ("python", "-c", program), 60, gpus)
        for name, gpus in (("lending", 2), ("train", 1), ("lender", 2), ("engine", 1))
    )
    monkeypatch.setattr(run, "STEPS", steps)
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    assert run.main([f"--output={tmp_path}", "--twin"]) == 0
    printed = capsys.readouterr().out
    assert "PASSED lending (one GPU seen as two)" in printed
    assert "PASSED train (one GPU seen as two)" in printed
    assert "SKIPPED lender: needs 2 GPUs, there are 1" in printed
    assert "PASSED engine: status 0" in printed
    assert "libtwin-cuda.so" in (tmp_path / "lending_twin.log").read_text()
    assert (tmp_path / "engine.log").read_text() == "none\n"


def test_without_a_gpu_there_is_nothing_to_see_as_two(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "gpus_here", lambda: 0)
    assert run.main([f"--output={tmp_path}", "--twin"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 passed, 0 failed")


def test_rows_of_a_twin_are_never_mixed_with_those_of_real_gpus(tmp_path: Path) -> None:
    def row(mode: str, length: int, **more: object) -> dict[str, object]:
        return {"part": "longest", "mode": mode, "length": length, "trains": True, **more}

    alone = [row("checkpoint", 1000), row("checkpoint", 2000, trains=False)]
    real = tmp_path / "finetune.json"
    real.write_text(json.dumps({"rows": alone}))
    lent = [row("peer", 3000, twin=True)]
    base: dict[str, object] = {"rows": []}
    report = merge.merged(finetune, base, [{"rows": alone + lent}], real)
    assert report["rows"] == lent
    assert report["ratios"] == {"longest_sequence_vs_checkpoint": 3.0}
    assert merge.merged(finetune, {"rows": alone}, [{"rows": lent}])["rows"] == alone


def test_what_real_gpus_have_shown_gives_a_twin_ratios(tmp_path: Path) -> None:
    def row(mode: str, length: int, **more: object) -> dict[str, object]:
        return {"part": "longest", "mode": mode, "length": length, "trains": True, **more}

    folder = tmp_path / "benchmarks"
    folder.mkdir()
    lent = {"rows": [row("peer", 3000, twin=True)], "ratios": {}}
    (folder / "finetune_twin.json").write_text(json.dumps(lent))
    news = {"rows": [row("checkpoint", 1000), row("checkpoint", 2000, trains=False)]}
    inside, archive = tmp_path / "finetune.json", tmp_path / "results.tar.gz"
    inside.write_text(json.dumps(news))
    with tarfile.open(archive, "w:gz") as opened:
        opened.add(inside, "results/finetune.json")
    merge.main([str(archive)], folder)
    twins = json.loads((folder / "finetune_twin.json").read_text())
    assert twins == {**lent, "ratios": {"longest_sequence_vs_checkpoint": 3.0}}


def test_figures_of_an_earlier_call_are_taken_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = tmp_path / "tree/docs/benchmarks"
    figures.mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/finetune.json").write_text('{"ratios": {"earlier": 1}}')
    monkeypatch.setattr(run, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(run, "STEPS", (Step("idle", ("python", "-c", "pass"), 60),))
    monkeypatch.setattr(run, "gpus_here", lambda: 1)
    words = [f"--output={tmp_path / 'logs'}", f"--collect={tmp_path / 'out'}", "--resume"]
    assert run.main(words) == 0
    assert "earlier" in (figures / "finetune.json").read_text()
    assert "finetune.json earlier" in (tmp_path / "out/summary.txt").read_text()


def test_steps_find_the_nccl_that_came_with_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path)])
    monkeypatch.delenv("HYPERFRAMES_NCCL_LIBRARY", raising=False)
    assert run.environment(tmp_path)["HYPERFRAMES_NCCL_LIBRARY"] == str(library)
