"""What saving costs the training loop, at one save per 50 steps.

    python tests/bench/checkpoint.py --saves 12

Trains the main job's model and batch (data parallel over gloo) and saves again and again. Around
each save a few steps are timed: calm ones, then those in which the state is copied and its writing
overlaps with training, then calm ones again. What the steps of the save take beyond the median of
the calm ones beside them is the save's cost. What the hooks and step() take in every step, saving
or not, is measured beside it, on a model of as many parameters of one element, where microseconds
show. Both together over 50 steps, against 50 steps of the bare loop, are the overhead. Neighbours
are seconds apart, so that a machine whose speed drifts by some per cent from minute to minute, as
shared ones do, drifts under both alike: blocks of 50 steps with and without a save do not get below
that. The comparison of the ranks' replicas, which the first save of a training makes, is not in it.

Writes docs/benchmarks/checkpoint.json, and the ratio into docs/benchmarks/control.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "examples")]
NAME = "checkpoint_overhead"
TINY_STEPS = 300


class Training:
    """The example's model, and the loop of a block."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        import torch

        import train_gpt
        from stdlib_text import ByteBatches

        torch.set_num_threads(1)
        torch.manual_seed(1)
        example = train_gpt.parse(["--batch", str(args.batch), "--length", str(args.length)])
        self._loss_of = train_gpt.loss_of
        self.model: torch.nn.Module = train_gpt.GPT(example)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if args.ranks > 1:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self._batches = ByteBatches(
            args.batch, args.length, rank=rank, world=args.ranks, seed=1
        )  # fmt: skip
        self._next = 0

    def step(self) -> None:
        ids, targets = self._batches.batch(self._next)
        self._next += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss: Any = self._loss_of(self.model(ids), targets)
        loss.backward()
        self.optimizer.step()


def bookkeeping_s(parameters: int, directory: Path) -> float:
    """Seconds a step that an open context takes which does not save."""
    import torch

    import hyperframes as hf

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = torch.nn.ParameterList(torch.zeros(1) for _ in range(parameters))

        def forward(self) -> torch.Tensor:
            return torch.cat(list(self.all)).sum()

    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())

    def per_step(end: Callable[[], object]) -> float:
        started = time.perf_counter()
        for _ in range(TINY_STEPS):
            optimizer.zero_grad(set_to_none=True)
            model().backward()
            optimizer.step()
            end()
        return (time.perf_counter() - started) / TINY_STEPS

    bare, watched = [], []
    for _ in range(5):
        bare.append(per_step(lambda: None))
        with hf.checkpoint(directory, model=model, optimizer=optimizer, every=0) as checkpoints:
            checkpoints.resume()
            watched.append(per_step(checkpoints.step))
    return statistics.median(watched) - statistics.median(bare)


def worker(args: argparse.Namespace) -> None:
    """One rank; rank 0 prints a JSON line per save."""
    import torch.distributed as dist

    import hyperframes as hf

    rank = int(os.environ["RANK"])
    if args.ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{args.rendezvous}", rank=rank, world_size=args.ranks
        )
    training = Training(args, rank)
    directory = Path(args.rendezvous).with_name("checkpoints")
    count = len(list(training.model.parameters()))
    every_step = bookkeeping_s(count, directory.with_name("bookkeeping"))
    with hf.checkpoint(
        directory, model=training.model, optimizer=training.optimizer, every=0, keep=2
    ) as checkpoints:
        checkpoints.resume()

        def steps(count: int, *, save: bool = False) -> list[float]:
            """Seconds of each; the first one takes the checkpoint."""
            taken = []
            for index in range(count):
                started = time.perf_counter()
                training.step()
                checkpoints.step()
                if save and index == 0:
                    checkpoints.save()
                taken.append(time.perf_counter() - started)
            return taken

        steps(3, save=True)  # The first save compares replicas.
        checkpoints.wait()
        before = steps(args.calm)
        for number in range(args.saves):
            known = checkpoints.stats()
            window = steps(args.window, save=True)
            stats = checkpoints.stats()
            assert stats["saved"] == known["saved"] + 1, "the save took longer than its window"
            after = steps(args.calm)
            calm = statistics.median(before + after)
            before = after
            extra = sum(window) - len(window) * calm
            if rank == 0:
                folders = list(directory.glob("step-*"))
                files = [p.stat().st_size for f in folders for p in f.rglob("*") if p.is_file()]
                row = {
                    "save": number,
                    "calm_step_s": calm,
                    "extra_s": extra,
                    "bookkeeping_us": 1e6 * every_step,
                    "overhead": (extra / args.steps + every_step) / (calm - every_step),
                    "blocked_ms": 1e3 * (stats["blocked_s"] - known["blocked_s"]),
                    "write_s": stats["write_s"] - known["write_s"],
                    "parameters": training.parameters,
                    "bytes_per_checkpoint": sum(files) // len(folders),
                }
                print(json.dumps(row), flush=True)
    if args.ranks > 1:
        # Or gloo's threads, letting go of the last gather's tensors while Python ends, abort it.
        dist.barrier()
        dist.destroy_process_group()


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Starts the ranks; the rows of rank 0."""
    with tempfile.TemporaryDirectory(prefix="hf-bench-", dir=args.directory) as folder:
        command = [
            sys.executable, __file__, "--worker", f"--rendezvous={folder}/rendezvous",
            f"--ranks={args.ranks}", f"--saves={args.saves}", f"--steps={args.steps}",
            f"--calm={args.calm}", f"--window={args.window}", f"--batch={args.batch}",
            f"--length={args.length}",
        ]  # fmt: skip
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(args.ranks)
        ]
        rows = []
        assert ranks[0].stdout is not None
        print(
            "save  calm step s  extra s  every step us  overhead  blocked ms  write s", flush=True
        )
        for line in ranks[0].stdout:
            row = json.loads(line)
            rows.append(row)
            print(
                f"{row['save']:4} {row['calm_step_s']:12.3f} {row['extra_s']:8.3f}"
                f" {row['bookkeeping_us']:14.0f} {row['overhead']:9.2%}"
                f" {row['blocked_ms']:11.1f} {row['write_s']:8.2f}",
                flush=True,
            )
        codes = [process.wait() for process in ranks]
        shutil.rmtree(Path(folder) / "checkpoints", ignore_errors=True)
    if any(codes) or len(rows) != args.saves:
        raise SystemExit(f"the ranks ended with {codes} after {len(rows)} of {args.saves} saves")
    return rows


def machine() -> str:
    """As the other files of docs/benchmarks say it."""
    name = platform.uname()
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(": ")[2]
            break
    return f"{name.system} {name.release} {name.machine}, {model}, {os.cpu_count()} cores"


def commit() -> str:
    """Of the tree; HYPERFRAMES_COMMIT names it where there is no repository."""
    done = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return os.environ.get("HYPERFRAMES_COMMIT") or done.stdout.strip() or "unknown"


def write(folder: Path, command: str, rows: list[dict[str, Any]]) -> float:
    """The report, and its ratio among the others of control.json. Returns the ratio."""
    overhead = float(statistics.median(row["overhead"] for row in rows))
    report = {
        "name": "checkpoint",
        "command": command,
        "commit": commit(),
        "machine": machine(),
        "rows": rows,
        "ratios": {NAME: overhead},
    }
    (folder / "checkpoint.json").write_text(json.dumps(report, indent=2) + "\n")
    control = folder / "control.json"
    if control.exists():
        values = json.loads(control.read_text())
        values["ratios"][NAME] = overhead
        values["ratios_from"] = {NAME: "checkpoint.json"}
        control.write_text(json.dumps(values, indent=2) + "\n")
    return overhead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--steps", type=int, default=50, help="for which one save is made")
    parser.add_argument("--calm", type=int, default=6, help="steps timed between two saves")
    parser.add_argument("--window", type=int, default=4, help="steps in which a save has to end")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--directory", help="where checkpoints are written meanwhile")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    rows = run(args)
    command = " ".join(["python", "tests/bench/checkpoint.py", *sys.argv[1:]])
    overhead = write(args.output, command, rows)
    print(f"median overhead of {len(rows)} saves: {overhead:.2%}")


if __name__ == "__main__":
    main()
