"""transformers' LlamaForCausalLM at 8B shape, bf16, in the ways to save its memory.

    python tests/bench/llama.py --lengths 8k --modes nothing,checkpoint,peer,host,auto

LoRA adapters by peft (r = 16 on the attention's projections), SDPA, and the loss by
hf.chunked_cross_entropy in every mode. Modes are measured as in finetune.py; rows go to
docs/benchmarks/llama.json. Needs transformers and peft.

``--part fsdp2`` shards all weights (no adapters) over every GPU with fully_shard, trains them with
AdamW, and finds the largest batch per GPU that trains: checkpoint, and HyperFrames (auto).
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Repeatable kernels for the proofs.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python"))

import torch

from bench.training import sharded
from bench.training.bouts import add_flags, plan_of, read_flags, rows_by_bout
from bench.training.llama import SHAPE_8B, SHAPE_TINY, LlamaTuning, make_llama
from bench.training.measure import summary
from bench.training.modes import Modes
from bench.training.ratios import Rows, mode_ratios
from bench.training.report import merge, word_of
from bench.training.workload import pinned_attention
from hyperframes import _native

ROOT = Path(__file__).resolve().parents[2]
KEY = ("part", "length", "mode", "batch")
NAMES = ("nothing", "checkpoint", "peer", "peer_only", "host", "auto")
DEFAULT = "nothing,checkpoint,peer,host,auto"


def say(text: str) -> None:
    print(text, flush=True)


def ratios(rows: Rows) -> dict[str, float]:
    """The fixed names; those whose rows are there."""
    return mode_ratios(rows) | sharded.ratios(rows)


def run_length(args: argparse.Namespace, workload: LlamaTuning, length: int) -> None:
    """All modes at one length; rows are written after every bout."""
    workload.set_length(length)
    modes = Modes(
        workload, args.device, tries=args.tries, peer_factor=args.peer_factor,
        host_factor=args.host_factor,
    )  # fmt: skip
    plan = plan_of(args)
    bouts = rows_by_bout(
        args, workload, length, modes=modes, plan=plan, say=say,
        keep=lambda rows: write(args, rows, quietly=True),
    )  # fmt: skip
    for rows in bouts:
        for row in rows:
            say(summary(row))
        write(args, rows)


def run_fsdp2(args: argparse.Namespace) -> int:
    """Starts torchrun for each mode; ranks write their rows for this process to keep. 1: a mode
    has not trained at all."""
    failed = 0
    gpus = args.gpus or max(1, torch.cuda.device_count())
    for length in args.lengths or [8192]:
        words = [
            f"--lengths={length}", f"--steps={args.steps}", f"--patience={args.patience}",
            f"--cap={args.cap}", f"--layers={args.layers}", f"--chunk={args.chunk}",
            f"--seconds={args.seconds}",
        ]  # fmt: skip
        words += [flag for flag in ("--tiny", "--lora") if flag in sys.argv]
        with tempfile.TemporaryDirectory(prefix="hf-fsdp2-") as scratch:
            for mode in args.modes or ["checkpoint", "auto"]:
                say(f"FSDP2 on {gpus} GPUs at length {word_of(length)}: {mode}")
                rows = sharded.search(
                    __file__, words, mode, gpus, Path(scratch) / "rows", args.seconds, say
                )
                write(args, rows)
                failed |= not any(row["trains"] for row in rows)
    return int(failed)


def write(args: argparse.Namespace, rows: Rows, quietly: bool = False) -> None:
    command = " ".join(["python", "tests/bench/llama.py", *sys.argv[1:]])
    report = merge(args.out, name="llama", command=command, rows=rows, key=KEY, ratios=ratios)
    for name, value in report["ratios"].items() if not quietly else ():
        say(f"  ratio {name} {value:.4f}")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    flag = parser.add_argument
    flag("--part", default="modes", choices=["modes", "fsdp2", "fsdp2-worker"])
    add_flags(parser, default_modes=DEFAULT)
    flag("--layers", type=int, default=0, help="instead of the model's own number")
    flag("--chunk", type=int, default=0, help="tokens of the loss; 0: the default")
    flag("--lora", action="store_true", help="adapters only in the part fsdp2, too")
    flag("--gpus", type=int, default=0, help="of the part fsdp2; default: all")
    flag("--cap", default="0", help="of memory per GPU in the part fsdp2; 0: all of it")
    flag("--batch", type=int, default=0, help=argparse.SUPPRESS)
    flag("--rows", default="", help=argparse.SUPPRESS)
    flag("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "llama.json")
    args = read_flags(parser, words, NAMES)
    args.shape = dict(SHAPE_TINY if args.tiny else SHAPE_8B)
    if args.layers:
        args.shape["num_hidden_layers"] = args.layers
    return args


def run_worker(args: argparse.Namespace) -> int:
    args.length, args.cap = args.lengths[0], _native.parse_bytes(args.cap)
    return sharded.Worker(args).run()


def main() -> int:
    faulthandler.enable()
    args = parse()
    if args.part == "fsdp2":  # Before this process takes memory on a GPU.
        return run_fsdp2(args)
    with pinned_attention(args.device):
        if args.part == "fsdp2-worker":
            return run_worker(args)
        trunk = make_llama(args.shape, args.device, args.dtype, lora=True)
        workload = LlamaTuning(
            trunk, args.device, args.shape["vocab_size"], chunk=args.chunk or None
        )  # fmt: skip
        args.modes = args.modes or DEFAULT.split(",")
        for length in args.lengths or [8192, 32768]:
            run_length(args, workload, length)
    return 0


if __name__ == "__main__":
    sys.exit(main())
