"""A byte-level GPT, trained on the Python standard library's own sources.

The same job in three modes: with nothing, with activation checkpointing, and with HyperFrames. The
training loop is plain PyTorch in all of them; `run()` shows the three lines that HyperFrames adds.

    python examples/train_gpt.py --mode nothing --steps 8 --report /tmp/nothing-{rank}.json

Runs alone or under anything that sets torchrun's variables (then data parallel over gloo). Every
number that the modes are compared by goes into the report: losses as exact hexadecimal floats, a
digest of all gradients for each step, peaks of activations and of the process's own memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import hyperframes as hf
from measure import Measurements, gradient_digest
from stdlib_text import ByteBatches

VOCABULARY = 256


class Block(nn.Module):
    """One transformer layer: [B, T, D] -> [B, T, D]."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, hidden)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Bytes in, next-byte logits out: [B, T] int64 -> [B, T, 256]."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        hidden = args.hidden
        self.token = nn.Embedding(VOCABULARY, hidden)
        self.position = nn.Embedding(args.length, hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, args.heads, args.dropout) for _ in range(args.layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        self.checkpointing = args.mode == "checkpointing"

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: ByteBatches,
    args: argparse.Namespace,
    measurements: Measurements,
    checkpoints: hf.Checkpoints | None,
) -> None:
    """The user's loop. What measures stands around it, never inside."""
    start = checkpoints.resume() if checkpoints is not None else 0
    for step in range(start, args.steps):
        ids, targets = batches.batch(step)
        with measurements.profiled(step == args.profile_memory_step), measurements.step() as record:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(ids), targets)
            loss.backward()
            optimizer.step()
        record.micro_batch, record.loss = step, loss.item()
        record.gradients = gradient_digest(model)
        print(
            f"step {step + 1}/{args.steps} loss {record.loss:.6f} {record.seconds:.2f} s"
            f" activations {record.activation_peak / 2**20:.1f} MiB",
            flush=True,
        )
        if checkpoints is not None and checkpoints.step():
            break


def run(args: argparse.Namespace) -> dict[str, Any]:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    if world > 1:
        dist.init_process_group("gloo")
    gpt = GPT(args)
    model: nn.Module = nn.parallel.DistributedDataParallel(gpt) if world > 1 else gpt
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    batches = ByteBatches(args.batch, args.length, rank=rank, world=world, seed=args.seed)

    with contextlib.ExitStack() as stack:
        measurements = Measurements(stack.enter_context(hf.ActivationMeter(gpt)))
        if args.mode == "hyperframes":
            ids, targets = batches.batch(0)
            profile = hf.profile(
                gpt, ids, loss_fn=lambda logits: loss_of(logits, targets), optimizer=optimizer
            )
            model = stack.enter_context(
                hf.hyperframes(model, profile=profile, activation_budget=args.activation_budget)
            )
        checkpoints = None
        if args.checkpoints:
            checkpoints = stack.enter_context(
                hf.checkpoint(
                    args.checkpoints,
                    model=model,
                    optimizer=optimizer,
                    extra={"measurements": measurements},
                    every=args.save_every,
                )
            )
        train(model, optimizer, batches, args, measurements, checkpoints)
        frames = hf.stats(model) if args.mode == "hyperframes" else {}

    if not measurements.steps:
        raise SystemExit(f"{args.checkpoints} is at step {args.steps} already: give more --steps")
    if world > 1:
        # Gloo's threads may still hold tensors of the last gather. Letting go of one that Python
        # knows too while Python ends would abort the process: they do it while this waits.
        dist.barrier()
        dist.destroy_process_group()
    steady = [record.seconds for record in measurements.steps[2:]] or [
        record.seconds for record in measurements.steps
    ]
    return {
        "mode": args.mode,
        "rank": rank,
        "world": world,
        "parameters": sum(p.numel() for p in gpt.parameters()),
        "activation_budget_bytes": frames.get("activation_budget"),
        # Over all ranks; the median of the steps after the second.
        "tokens_per_second": args.batch * args.length * world / statistics.median(steady),
        "activation_peak": max(record.activation_peak for record in measurements.steps),
        "anonymous_peak": max(record.anonymous_peak for record in measurements.steps),
        "steps": [record.as_json() for record in measurements.steps],
        "curve": measurements.curve,
        "frames": frames,
    }


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--mode", choices=["nothing", "checkpointing", "hyperframes"], default="nothing"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    parser.add_argument("--length", type=int, default=512, help="bytes per sequence")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--activation-budget",
        default=None,
        metavar="SIZE",
        help="hyperframes mode: 80MiB, or bytes; without it the recommended one",
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write the measurements there; {rank} is replaced"
    )
    parser.add_argument(
        "--profile-memory-step",
        type=int,
        default=-1,
        metavar="K",
        help="record the allocator's curve of step K (from 0); slows that step",
    )
    parser.add_argument(
        "--checkpoints", metavar="DIR", help="save there, and go on from what is there"
    )
    parser.add_argument("--save-every", type=int, default=50, metavar="N", help="in steps")
    args = parser.parse_args(argv)
    if args.activation_budget is not None and args.mode != "hyperframes":
        parser.error("--activation-budget needs --mode hyperframes")
    if args.steps < 1:
        parser.error(f"--steps is {args.steps}; it must be at least 1")
    return args


def main(argv: list[str]) -> int:
    args = parse(argv)
    report = run(args)
    if args.report:
        path = Path(args.report.replace("{rank}", str(report["rank"])))
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text(json.dumps(report))
        temporary.replace(path)
    print(
        f"{args.mode}: {report['tokens_per_second']:.0f} tokens/s, activation peak"
        f" {report['activation_peak'] / 2**20:.1f} MiB, own memory peak"
        f" {report['anonymous_peak'] / 2**20:.1f} MiB",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
