"""A long-sequence fine-tune of 16 layers, forward and backward, in every way to save its memory.

    python tests/bench/finetune.py --lengths 32k --modes nothing,checkpoint,peer

Modes are measured turn by turn in one process, after their gradients were proved to be those of
the reference to the last bit (nothing; full checkpointing where nothing does not fit). Prints a
line per turn, adds a row per mode to docs/benchmarks/finetune.json and makes its ratios anew.

``--part longest``: the longest sequence that trains with every GPU capped. ``--part jobs``: a job
on each GPU at once, nothing to borrow from peers. ``--part lender``: what copies cost a lender's
own compute. ``--part article``: 60 GB of activations, a fifth of them here. docs/benchmarks.md has
the commands.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Repeatable kernels for the proofs.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import torch

import hyperframes as hf
from bench.training import longest
from bench.training import modes as all_modes
from bench.training.article import run_article
from bench.training.bouts import add_flags, plan_of, read_flags, rows_by_bout
from bench.training.ceiling import measure_ceiling
from bench.training.drivers import measure_drivers
from bench.training.jobs import Together, combine, run_jobs
from bench.training.lender import measure_lender
from bench.training.measure import Meter, Plan, summary
from bench.training.ratios import Rows, look, mode_ratios
from bench.training.report import merge, word_of
from bench.training.workload import FineTune, pinned_attention
from hyperframes import _native

ROOT = Path(__file__).resolve().parents[2]
KEY = ("part", "length", "mode", "allocator")
JOBS = ("jobs", 32768, "host")


def say(text: str) -> None:
    print(text, flush=True)


def ratios(rows: Rows) -> dict[str, float]:
    """The fixed names; those whose rows are there."""
    found = mode_ratios(rows) | longest.ratios(rows)
    job = next((r for r in rows if (r["part"], r["length"], r["mode"]) == JOBS), None)
    for name, path in (
        ("four_jobs_32k_throughput_vs_nothing", ("throughput_vs", "nothing")),
        ("four_jobs_32k_throughput_vs_checkpoint", ("throughput_vs", "checkpoint")),
        ("four_jobs_32k_peak_vs_checkpoint", ("peak_vs", "checkpoint")),
    ):
        value = look(job, *path)
        if value is not None:
            found[name] = value
    slower = [row["slowdown"] for row in rows if row["part"] == "lender"]
    if slower:
        found["lender_slowdown"] = max(slower)
    return found


def make_modes(args: argparse.Namespace, workload: FineTune) -> all_modes.Modes:
    return all_modes.Modes(
        workload, args.device, compile_backend=args.compile_backend, tries=args.tries,
        peer_factor=args.peer_factor, host_factor=args.host_factor,
    )  # fmt: skip


def make_plan(args: argparse.Namespace) -> Plan:
    plan = plan_of(args)
    if args.together:
        plan.together = Together(args.together, args.patience)
    return plan


def run_length(args: argparse.Namespace, workload: FineTune, length: int) -> None:
    """All modes at one length; rows are written after every bout."""
    torch._dynamo.reset()
    workload.set_length(length)
    modes, plan = make_modes(args, workload), make_plan(args)
    bouts = rows_by_bout(
        args, workload, length, modes=modes, plan=plan, say=say,
        keep=lambda rows: write(args, rows, quietly=True),
    )  # fmt: skip
    for rows in bouts:
        add_ceiling(args, workload, rows)
        for row in rows:
            say(summary(row))
        write(args, rows)


def add_ceiling(args: argparse.Namespace, workload: FineTune, rows: list[dict[str, Any]]) -> None:
    """To the rows that move to peers: what their copies leave of nothing's throughput at best."""
    by = {row["mode"]: row for row in rows}
    nothing = by.get("nothing", {})
    moving = [
        by[name] for name in ("peer", "peer_only") if "failed" not in by.get(name, {"failed"})
    ]
    if args.tiny or torch.cuda.device_count() < 2 or not moving or "round_ms" not in nothing:
        return
    try:
        ceiling = measure_ceiling(workload, args.device, 1)
    except (RuntimeError, hf.HyperFramesError) as error:
        say(f"  no ceiling: {str(error)[:400]}")
        return
    say(f"  ceiling: {ceiling.figures()}")
    nothing_s = workload.tokens / nothing["tokens_per_s"]
    for row in moving:
        away = row["peer_bytes"] + row["recomputed_bytes"]
        best = ceiling.versus_nothing(nothing_s, away)
        row |= {
            **ceiling.figures(),
            "ceiling_bytes": away,
            "ceiling_vs_nothing": best,
            "throughput_vs_ceiling": row["throughput_vs"]["nothing"] / best,
        }
        say(
            f"  {row['mode']}: ceiling {best:.4f}, reached {row['throughput_vs_ceiling']:.4f} of it"
        )


def write(args: argparse.Namespace, rows: list[dict[str, Any]], quietly: bool = False) -> None:
    command = " ".join(["python", "tests/bench/finetune.py", *sys.argv[1:]])
    report = merge(
        args.out, name="finetune", command=command, rows=rows, key=KEY, ratios=ratios
    )  # fmt: skip
    for name, value in report["ratios"].items() if not quietly else ():
        say(f"  ratio {name} {value:.4f}")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    flag = parser.add_argument
    flag("--part", default="modes", choices=["modes", "longest", "jobs", "lender", "article"])
    add_flags(parser)
    flag("--layers", type=int, default=16)
    flag("--hidden", type=int, default=4096)
    flag("--heads", type=int, default=32)
    flag("--cap", default="40GiB", help="of every GPU, for the part longest")
    flag("--lend", default="", help="of every lender, for the part longest; default: --cap")
    flag("--own-share", type=float, default=0.2, help="of activations, for the part article")
    flag("--alike", type=int, default=0, help="blocks that are profiled; the rest are as these")
    flag("--trials", type=int, default=5, help="most of a mode, for the part longest")
    flag("--jobs", type=int, default=0, help="at once; default: as many as GPUs")
    flag("--together", default="", help=argparse.SUPPRESS)
    flag("--compile-backend", default="inductor")
    flag("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "finetune.json")
    args = read_flags(parser, words, all_modes.Modes.NAMES)
    if args.tiny:
        args.layers, args.hidden, args.heads = 3, 64, 4
        args.compile_backend = "aot_eager"
    args.cap = _native.parse_bytes(args.cap)
    args.lend = _native.parse_bytes(args.lend) if args.lend else args.cap
    return args


def run_article_part(args: argparse.Namespace, workload: FineTune) -> None:
    for length in args.lengths or [25600]:
        workload.set_length(length)
        meter = Meter(workload, args.device, warms=args.warm > 0)
        modes, plan = make_modes(args, workload), make_plan(args)
        rows = run_article(
            workload, meter, modes, plan, say, args.own_share,
            keep=lambda rows: write(args, rows, quietly=True),
        )  # fmt: skip
        for row in rows:
            say(summary(row))
        write(args, rows)


def run_longest_part(args: argparse.Namespace, workload: FineTune) -> None:
    search = longest.Search(
        workload, args.device, cap=args.cap, lend=args.lend, patience_s=args.patience,
        make=lambda: make_modes(args, workload), say=say, trials=args.trials, until=args.until,
    )  # fmt: skip
    for mode in args.modes or ["checkpoint", "checkpoint_inputs_on_host", "peer"]:
        for row in search.run(mode, args.lengths):
            write(args, [row])


def run_jobs_part(args: argparse.Namespace) -> None:
    """Starts this script once per GPU with the part ``modes``."""
    count = args.jobs or max(1, torch.cuda.device_count())
    modes = args.modes or ["nothing", "checkpoint", "host"]
    for length in args.lengths or [32768]:
        words = [
            f"--lengths={length}", f"--modes={','.join(modes)}", f"--rounds={args.rounds}",
            f"--steps={args.steps}", f"--warm={args.warm}", f"--tries={args.tries}",
            f"--patience={args.patience}", f"--host-factor={args.host_factor}",
        ]  # fmt: skip
        words += [f"--{name}" for name in ("tiny", "once") if getattr(args, name)]
        say(f"{count} jobs at length {word_of(length)}")
        rows = combine(run_jobs(__file__, words, count, args.seconds + 60, say))
        for row in rows:
            say(f"  {count} jobs: " + json.dumps({k: v for k, v in row.items() if k != "jobs"}))
        write(args, rows)


def main() -> None:
    faulthandler.enable()
    args = parse()
    if args.part == "jobs":  # Before this process takes memory on a GPU.
        run_jobs_part(args)
        return
    if args.part == "lender" and torch.cuda.device_count() < 2:
        raise SystemExit("the part lender needs two GPUs")
    if args.part == "lender":
        gpus = args.device, torch.device("cuda", 1)
        for row in itertools.chain(measure_lender(*gpus, say), measure_drivers(*gpus, say)):
            write(args, [row], quietly=True)
        return
    torch._dynamo.config.recompile_limit = 64
    with pinned_attention(args.device):
        workload = FineTune(
            args.device, layers=args.layers, hidden=args.hidden, heads=args.heads,
            dtype=args.dtype, alike=args.alike,
        )  # fmt: skip
        if args.part == "longest":
            run_longest_part(args, workload)
        elif args.part == "article":
            run_article_part(args, workload)
        else:
            args.modes = args.modes or list(all_modes.Modes.NAMES)
            for length in args.lengths or [8192, 32768]:
                run_length(args, workload, length)


if __name__ == "__main__":
    main()
