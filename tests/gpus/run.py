#!/usr/bin/env python3
"""Runs what only GPUs can show, step by step, each with a limit of its own.

    bazel build //tests/gpus:kit                       # here, or where Bazel is
    python tests/gpus/run.py --kit gpu-tests.tar.gz    # everything that this machine's GPUs allow
    python tests/gpus/run.py --list
    python tests/gpus/run.py --steps doctor,engine,peer_32k --output results

The machine needs torch, this checkout, and either its bazel-bin or the kit. Every step's output
goes to a file of its own, and its end to stdout; benchmarks write docs/benchmarks, which is copied
to --output after every step. A step that takes too long is killed with all that it started. The
last line counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TAIL_BYTES = 4096
GRACE_S = 5.0
NOTHING_RAN = b"[  PASSED  ] 0 tests."  # GoogleTest's words where all of them were skipped.
FINETUNE = ("python", "tests/bench/finetune.py")
CASES = (  # Apart from the checkout's own settings, which name tools that need not be there.
    "python", "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir=tests", "--timeout=60",
    "--confcutdir=tests/cases", "--import-mode=importlib", "-p", "no:cacheprovider",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One command; ``python`` is this interpreter, other names are programs of bazel-bin."""

    name: str
    command: tuple[str, ...]
    limit_s: int
    gpus: int = 1
    shows: str = ""


STEPS = (
    Step("doctor", ("client/cli/hfctl", "doctor"), 30, 1, "what links carry against their promise"),
    Step(
        "conformance",
        ("agent/device/device_conformance_test", "--gtest_brief=1", "--gtest_filter=*cuda*"),
        120, 1, "the device interface's promises on CUDA",
    ),
    Step(
        "chaos", ("agent/engine/chaos_test", "--gtest_brief=1", "--gtest_filter=*cuda*"),
        120, 1, "a removed event is found in every lane",
    ),
    Step("lending", ("agent/device/cuda/lending_test", "--gtest_brief=1"), 60, 2,
         "a lease outlives its lender, which is hidden from the borrower"),
    Step("agent_lending", ("agent/service/gpu_lending_test", "--gtest_brief=1"), 60, 1,
         "a real agent's leases, adopted, and every byte back"),
    Step("train", ("python", "tests/gpus/train_on_gpus.py"), 240, 1, "bit-equal in every mode"),
    Step("cluster", ("python", "tests/gpus/cluster_on_gpus.py"), 290, 2,
         "a job borrows another GPU through an agent; agent and worker killed"),
    Step("engine", ("tests/bench/engine",), 120, 1, "engine.json"),
    Step("node_to_node", ("tests/bench/node_to_node", "--backend=cuda"), 120, 1,
         "node_to_node.json"),
    Step("peer_8k", (*FINETUNE, "--lengths", "8k", "--modes", "nothing,checkpoint,peer"), 240, 2,
         "finetune.json"),
    Step("peer_32k", (*FINETUNE, "--lengths", "32k", "--modes", "nothing,checkpoint,peer"), 420, 2,
         "finetune.json, the ceiling"),
    Step("host_32k", (*FINETUNE, "--lengths", "32k", "--modes", "nothing,checkpoint,host"), 420, 1,
         "finetune.json"),
    Step("peer_64k", (*FINETUNE, "--lengths", "64k", "--modes", "checkpoint,peer", "--rounds", "2",
                      "--steps", "2"), 480, 2, "finetune.json"),
    Step("across_nodes", ("python", "tests/bench/across_nodes.py", "--backend=cuda"), 480, 2,
         "a job whose frames cross two nodes: across_nodes.json"),
    Step("longest_peer", (*FINETUNE, "--part", "longest", "--modes", "peer", "--patience", "300"),
         480, 2, "finetune.json, every GPU capped"),
    Step("longest_checkpoint", (*FINETUNE, "--part", "longest", "--modes", "checkpoint",
                                "--patience", "300"), 480, 1, "finetune.json"),
    Step("article", (*FINETUNE, "--part", "article"), 480, 2, "finetune.json"),
    Step("llama_8k", ("python", "tests/bench/llama.py", "--lengths", "8k", "--modes",
                      "nothing,checkpoint,peer"), 480, 2, "llama.json"),
    Step("fsdp2", ("python", "tests/bench/llama.py", "--part", "fsdp2", "--modes", "checkpoint"),
         480, 2, "llama.json; 'auto' is a call of its own"),
    Step("lender", (*FINETUNE, "--part", "lender"), 240, 2, "finetune.json"),
    Step("jobs", (*FINETUNE, "--part", "jobs"), 480, 2, "finetune.json"),
    Step("cases", (*CASES, "tests/cases"), 580, 1, "T1 to T27 on CUDA"),
    Step(
        "memcheck",
        ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode",
         "9", "agent/device/device_conformance_test", "--gtest_brief=1",
         "--gtest_filter=*cuda*:-*HasLinks*:*NeverRecycled*:*DelaysOne*"),
        240, 1, "no error of memory",
    ),
)  # fmt: skip


def resolved(command: Sequence[str], programs: Path) -> list[str]:
    """The command with this interpreter and with programs by their paths."""
    words = [str(programs / word) if (programs / word).is_file() else word for word in command]
    return (
        [sys.executable, "-u", "-X", "faulthandler", *words[1:]] if words[0] == "python" else words
    )


def environment(programs: Path) -> dict[str, str]:
    """Of every step: the checkout's Python, the built library, and where the kit keeps its own."""
    modules = [str(ROOT / part) for part in ("client/python", "deploy", "tests")]
    found = {
        "PYTHONPATH": os.pathsep.join(modules),
        "PYTHONUNBUFFERED": "1",
        "NCCL_NVLS_ENABLE": "0",
        "HYPERFRAMES_TEST_DEVICE": "cuda",
    }
    for library in (programs / "lib/libhyperframes.so", programs / "client/c/libhyperframes.so"):
        if library.exists():
            found.setdefault("HYPERFRAMES_LIBRARY", str(library))
    if (programs / "lib").is_dir():
        found["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, (str(programs / "lib"), os.environ.get("LD_LIBRARY_PATH")))
        )
    return {"BUILD_WORKSPACE_DIRECTORY": str(ROOT), **os.environ, **found}


def gpus_here() -> int:
    """As the driver counts them; 0 without one."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def run_step(step: Step, programs: Path, log: Path) -> int:
    """Its exit status; 124 when it took too long. Nothing that it started is left."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            resolved(step.command, programs),
            cwd=ROOT if step.command[0] == "python" else programs,
            env=environment(programs),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(timeout=step.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                pass
            status = 124
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
    return status


def unpacked(kit: Path, folder: Path) -> Path:
    """The kit's root, unpacked into ``folder``."""
    with tarfile.open(kit) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kit", type=Path, help="gpu-tests.tar.gz; without it bazel-bin is used")
    parser.add_argument("--steps", help="names with commas between them; without it all")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--output", type=Path, default=ROOT / "dist/gpus", help="where logs go")
    return parser.parse_args(arguments)


def chosen(names: str | None) -> list[Step]:
    """The steps by their names, in the order given. SystemExit names an unknown one."""
    if names is None:
        return list(STEPS)
    known = {step.name: step for step in STEPS}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise SystemExit(f"there is no step {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def main(arguments: Sequence[str]) -> int:
    args = parse(arguments)
    steps = chosen(args.steps)
    if args.list:
        for step in steps:
            print(f"{step.name:<14} {step.limit_s:>4} s  {step.gpus} GPUs  {step.shows}")
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    programs = unpacked(args.kit, args.output / "kit") if args.kit else ROOT / "bazel-bin"
    if args.kit and not (ROOT / "bazel-bin").exists():
        (ROOT / "bazel-bin").symlink_to(programs)  # Where tests look for daemons.
    gpus = gpus_here()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for step in steps:
        if gpus < step.gpus:
            counts["skipped"] += 1
            print(f"SKIPPED {step.name}: needs {step.gpus} GPUs, there are {gpus}", flush=True)
            continue
        log = args.output / f"{step.name}.log"
        start = time.monotonic()
        status = run_step(step, programs, log)
        end = log.read_bytes()[-TAIL_BYTES:]
        print(end.decode(errors="replace"))
        word = "failed" if status else "skipped" if NOTHING_RAN in end else "passed"
        counts[word] += 1
        seconds = time.monotonic() - start
        print(f"{word.upper()} {step.name}: status {status}, {seconds:.0f} s", flush=True)
        for file in (ROOT / "docs/benchmarks").glob("*.json"):
            shutil.copy2(file, args.output / file.name)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
