#!/usr/bin/env python3
"""Runs what only GPUs can show, step by step, each with a limit of its own.

    bazel build //tests/gpus:kit                       # here, or where Bazel is
    python tests/gpus/run.py --kit gpu-tests.tar.gz    # everything that this machine's GPUs allow
    python tests/gpus/run.py --list
    python tests/gpus/run.py --twin --steps lending,cluster    # on one GPU, as if there were two
    python tests/gpus/run.py --steps doctor,conformance+chaos,peer_32k --seconds 560 --collect out

Steps with a plus between them run at once. The machine needs torch, this checkout, and either its
bazel-bin or the kit. Every step's output goes to a file of its own, and its end to stdout;
benchmarks write docs/benchmarks, which is copied to --output after every step. A step that takes
too long is killed with all that it started, and the next one begins. The last line counts.

With --twin, steps that compare bits and count bytes between two GPUs run on one that is seen as two
(agent/device/cuda/twin); their logs and files have "twin" in their names, and no times.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from gpus import twin  # noqa: E402
from gpus.nvml import Nvml  # noqa: E402
from gpus.steps import STEPS as STEPS  # noqa: E402
from gpus.steps import TWIN, Step  # noqa: E402

PASSED_BYTES, FAILED_BYTES = 900, 2500  # Of a step's log, on stdout: callers may see 12,000 only.
GRACE_S = 5.0
COLLECT_EVERY_S = 15.0
CUDA = Path("/usr/local")
MISSING = 127  # A shell's status for a program that is not there.
NOTHING_RAN = b"[  PASSED  ] 0 tests."  # GoogleTest's words where all of them were skipped.
_SET_CHILD_SUBREAPER = 36
# One thread: a machine that is given memory as it uses it may not follow eight.
_GROW = """
import importlib, mmap, sys, time
for name in ("torch", "transformers", "peft"):  # Read from a cold disk while programs run.
    try:
        importlib.import_module(name)
    except ImportError:
        pass
held, started = [], time.monotonic()
for _ in range(int(sys.argv[1])):
    piece = mmap.mmap(-1, 1 << 30)
    try:
        piece.madvise(23)  # MADV_POPULATE_WRITE.
    except OSError:
        for at in range(0, 1 << 30, 4096):
            piece[at] = 1
    held.append(piece)
total = next(line for line in open("/proc/meminfo") if line.startswith("MemTotal"))
print(f"{len(held)} GiB touched in {time.monotonic() - started:.1f} s, {total.strip()}")
"""


def resolved(command: Sequence[str], programs: Path) -> list[str]:
    """The command with this interpreter and with programs by their paths."""
    words = [str(programs / word) if (programs / word).is_file() else word for word in command]
    if "/" not in words[0] and shutil.which(words[0]) is None:  # CUDA's tools: often on no path.
        words[0] = next((str(p) for p in CUDA.glob(f"cuda*/bin/{words[0]}")), words[0])
    return (
        [sys.executable, "-u", "-X", "faulthandler", *words[1:]] if words[0] == "python" else words
    )


def nccl_library() -> str:
    """The one that came with torch, found without importing it; empty: there is none."""
    for folder in sys.path:
        for found in Path(folder).glob("nvidia/*/lib/libnccl.so.2"):
            return str(found)
    return ""


def environment(programs: Path) -> dict[str, str]:
    """Of every step: the checkout's Python, the built library, and where the kit keeps its own."""
    modules = [str(ROOT / part) for part in ("client/python", "deploy", "tests")]
    found = {
        "PYTHONPATH": os.pathsep.join(filter(None, (*modules, os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # Also of what steps start.
        "NCCL_NVLS_ENABLE": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # As NVML and nvidia-smi count.
        "HYPERFRAMES_TEST_DEVICE": "cuda",
    }
    for library in (programs / "lib/libhyperframes.so", programs / "client/c/libhyperframes.so"):
        if library.exists():
            found.setdefault("HYPERFRAMES_LIBRARY", str(library))
    if nccl_library() and "HYPERFRAMES_NCCL_LIBRARY" not in os.environ:
        found["HYPERFRAMES_NCCL_LIBRARY"] = nccl_library()
    if (programs / "lib").is_dir():
        found["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, (str(programs / "lib"), os.environ.get("LD_LIBRARY_PATH")))
        )
    return {"BUILD_WORKSPACE_DIRECTORY": str(ROOT), **os.environ, **found}


def gpus_here() -> int:
    """As the driver counts them; 0 without one."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def run_step(
    step: Step, programs: Path, log: Path, limit_s: float | None = None, as_twins: bool = False
) -> int:
    """Its exit status; 124 when it took too long. Nothing of its session is left."""
    more = {**dict(step.environment), **(twin.environment(programs) if as_twins else {})}
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                resolved(step.command, programs),
                cwd=ROOT if step.command[0] == "python" else programs,
                env={**environment(programs), **more},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            output.write(f"{step.name} does not start: {error}\n".encode())
            return MISSING
        try:
            status = child.wait(timeout=limit_s or step.limit_s)
        except subprocess.TimeoutExpired:
            # Python says where every thread is before it dies of an abort.
            child.send_signal(signal.SIGABRT if step.command[0] == "python" else signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=GRACE_S)
            status = 124
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return status


def descendants() -> set[int]:
    """All living processes below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = (int(fields[1]), fields[0])
    found: set[int] = set()
    level = {os.getpid()}
    while level:
        level = {pid for pid, (parent, _) in parents.items() if parent in level} - found
        found |= level
    return found


def end_left_over(before: set[int]) -> int:
    """Kills what steps left in sessions of their own: daemons, their jobs. How many."""
    ended: set[int] = set()
    until = time.monotonic() + GRACE_S
    while (left := descendants() - before) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # Another one's child so far.
                os.waitpid(pid, os.WNOHANG)
        ended |= left
        time.sleep(0.01)  # The kernel tells nobody when the last of them is gone.
    return len(ended)


def unpacked(kit: Path, folder: Path) -> Path:
    """The kit's root, unpacked anew into ``folder``. The library is also where Bazel has it:
    workers of a job are told no setting of ours, and look for it in bazel-bin."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(kit) as archive:
        archive.extractall(folder, filter="data")
    root = next(path for path in folder.iterdir() if path.is_dir())
    library, built = root / "lib/libhyperframes.so", root / "client/c/libhyperframes.so"
    if library.exists() and not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        built.symlink_to(library)
    return root


def link_programs(programs: Path, link: Path) -> None:
    """bazel-bin, where tests look for daemons, leads to the kit unless Bazel has built here."""
    if link.is_symlink() and (not link.exists() or link.parent / "dist" in link.resolve().parents):
        link.unlink()
    if not link.exists():
        link.symlink_to(programs)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flag = parser.add_argument
    flag("--kit", type=Path, help="gpu-tests.tar.gz; without it bazel-bin is used")
    flag("--steps", help="names with commas between them, or a plus: at once; without it all")
    flag("--list", action="store_true", help="say what there is, and end")
    flag("--output", type=Path, default=ROOT / "dist/gpus", help="where logs go")
    flag("--resume", action="store_true", help="take up the figures that --output has already")
    flag("--collect", type=Path, help="gets results.tar.gz and summary.txt, kept up to date")
    flag("--seconds", type=float, default=0, help="for all; a step without time is not begun")
    flag("--grow-memory", type=int, default=0, help="GiB to touch beside the first steps, once")
    flag("--twin", action="store_true", help="one GPU seen as two, for the steps that can use it")
    flag("--commit", help="of this tree, for the files; default: git's")
    return parser.parse_args(arguments)


def chosen(names: str | None) -> list[list[Step]]:
    """The steps by their names, in the order given; those of one list run at once. SystemExit
    names an unknown one."""
    if names is None:
        return [[step] for step in STEPS]
    known = {step.name: step for step in STEPS}
    asked = [group.split("+") for group in names.split(",")]
    unknown = [name for group in asked for name in group if name not in known]
    if unknown:
        raise SystemExit(f"there is no step {', '.join(unknown)}; there are {', '.join(known)}")
    return [[known[name] for name in group] for group in asked]


class Runner:
    """Runs groups of steps and keeps what they say and measure.

    Args:
        until: on the monotonic clock; a step that is expected to take longer is not begun.
    """

    def __init__(self, args: argparse.Namespace, programs: Path, gpus: int, until: float) -> None:
        self._output, self._collect, self._until = args.output, args.collect, until
        self._programs, self._gpus, self._twin = programs, gpus, args.twin
        self._lock = threading.Lock()
        self._began = time.time() - 1  # Files' times come from a coarser clock.
        self.lines: list[str] = []
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self._nvml: Nvml | None = None
        with contextlib.suppress(OSError, AttributeError):
            # Held to the end: without anybody the driver lets go of a GPU, and takes seconds anew.
            self._nvml = Nvml()

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def run(self, group: list[Step]) -> None:
        """The steps of a group at once."""
        ready = [step for step in group if self._may_begin(step)]
        if not ready:
            return
        before = descendants()
        limit = min(self._until - time.monotonic(), max(step.limit_s for step in ready))
        with ThreadPoolExecutor(len(ready)) as pool:
            running = {pool.submit(self._run, step, min(limit, step.limit_s)) for step in ready}
            while wait(running, timeout=COLLECT_EVERY_S).not_done:
                self.collect()
        for error in filter(None, (done.exception() for done in running)):
            self.counts["failed"] += 1
            self.say(f"FAILED in the runner: {type(error).__name__}: {error}")
        left = end_left_over(before)
        if left:
            self.say(f"  {left} processes were left, and ended")
        if self._nvml is not None:
            self.say(f"  GPU memory in use: {[b >> 20 for b in self._nvml.used().values()]} MiB")
        self.collect()

    def _as_twins(self, step: Step) -> bool:
        return bool(self._twin) and step.name in TWIN

    def _may_begin(self, step: Step) -> bool:
        left = self._until - time.monotonic()
        why = ""
        gpus = 2 if self._gpus == 1 and self._as_twins(step) else self._gpus
        if gpus < step.gpus:
            why = f"needs {step.gpus} GPUs, there are {gpus}"
        elif left < step.expected_s:
            why = f"takes {step.expected_s} s, {left:.0f} are left"
        if why:
            self.counts["skipped"] += 1
            self.say(f"SKIPPED {step.name}: {why}")
        return not why

    def _run(self, step: Step, limit_s: float) -> None:
        as_twins = self._as_twins(step)
        log = self._output / f"{step.name}{'_twin' if as_twins else ''}.log"
        start = time.monotonic()
        status = run_step(step, self._programs, log, limit_s, as_twins)
        seconds = time.monotonic() - start
        said = log.read_bytes()
        failed = bool(status)
        word = "failed" if failed else "skipped" if NOTHING_RAN in said[-4096:] else "passed"
        with self._lock:
            self.counts[word] += 1
            print(said[-(FAILED_BYTES if failed else PASSED_BYTES) :].decode(errors="replace"))
            name = f"{step.name}{' (one GPU seen as two)' if as_twins else ''}"
            self.say(f"{word.upper()} {name}: status {status}, {seconds:.0f} s")

    def figures(self) -> list[Path]:
        """Files of docs/benchmarks that were written since the start."""
        files = sorted((ROOT / "docs/benchmarks").glob("*.json"))
        return [file for file in files if file.stat().st_mtime >= self._began]

    def summary(self) -> str:
        """Every step's line, then the ratios in the files written so far."""
        found = list(self.lines)
        for file in self.figures():
            ratios = json.loads(file.read_text()).get("ratios", {})
            found += [f"{file.name} {name} {value:.4f}" for name, value in ratios.items()]
        return "\n".join(found) + "\n"

    def collect(self) -> None:
        """Copies the figures beside the logs, and packs both. At once or not at all."""
        for file in self.figures():
            shutil.copy2(file, self._output / file.name)
        if self._collect is None:
            return
        self._collect.mkdir(parents=True, exist_ok=True)
        (self._collect / "summary.txt").write_text(self.summary())
        scratch = self._output / "results.tmp"
        with tarfile.open(scratch, "w:gz") as archive:
            for file in sorted(self._output.iterdir()):
                if file.suffix in (".log", ".json"):
                    archive.add(file, f"results/{file.name}")
        shutil.copyfile(scratch, self._collect / "results.tmp")
        (self._collect / "results.tmp").replace(self._collect / "results.tar.gz")
        scratch.unlink()


def main(arguments: Sequence[str]) -> int:
    args = parse(arguments)
    groups = chosen(args.steps)
    if args.list:
        for step in (step for group in groups for step in group):
            print(
                f"{step.name:<20} about {step.expected_s:>3} s, at most {step.limit_s:>3} s,"
                f" {step.gpus} GPUs  {step.shows}"
            )
        total = sum(max(step.expected_s for step in group) for group in groups)
        print(f"about {total} s in all")
        return 0
    until = time.monotonic() + (args.seconds or 1e6)
    args.output.mkdir(parents=True, exist_ok=True)
    programs = unpacked(args.kit, ROOT / "dist/kit") if args.kit else ROOT / "bazel-bin"
    if args.kit:
        link_programs(programs, ROOT / "bazel-bin")
    if args.resume:  # The tree may have come anew since, without them.
        for file in args.output.glob("*.json"):
            shutil.copy(file, ROOT / "docs/benchmarks" / file.name)
    if args.commit:
        os.environ["HYPERFRAMES_COMMIT"] = args.commit
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # Orphans are ours to end.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    grower = None
    if args.grow_memory:
        with (args.output / "memory.log").open("wb") as log:
            command = [sys.executable, "-c", _GROW, str(args.grow_memory)]
            grower = subprocess.Popen(command, stdout=log, stderr=log)
    runner = Runner(args, programs, gpus_here(), until)
    try:
        for group in groups:
            runner.run(group)
    finally:
        if grower is not None:
            grower.kill()
            grower.wait()
        runner.collect()
    print(runner.summary())
    counts = runner.counts
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
