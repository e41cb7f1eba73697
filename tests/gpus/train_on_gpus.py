#!/usr/bin/env python3
"""Trains a small GPT on real GPUs in every mode, without daemons, and compares each with the plain
run: losses and gradients bit for bit, allocated bytes flat after the third step, no hang.

    python tests/gpus/train_on_gpus.py                       # GPU 0 computes, the others may lend
    python tests/gpus/train_on_gpus.py --dtype float32 --modes nothing,host

Prints a line per mode and exits with 1 when any of it does not hold. Modes that need a peer are
skipped, and counted as skipped, on a machine with one GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import hyperframes as hf
from gpus import twin
from hyperframes import _native

DEVICE = torch.device("cuda", 0)
FLAT_AFTER = 3
MODES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "nothing_again": {},
    "checkpointing": {"checkpointing": True},
    "keep": {"forbid": ["peer", "host", "recompute"], "share": 1.0},
    "recompute": {"forbid": ["peer", "host"], "share": 0.0},
    "peer": {"forbid": ["host", "recompute"], "share": 0.0, "needs_peer": True},
    "host": {"forbid": ["peer", "recompute"], "share": 0.0},
    "auto": {"forbid": [], "share": 0.3},
    "peer_chaos": {
        "forbid": ["host", "recompute"], "share": 0.0, "needs_peer": True,
        "chaos": {"seed": 3, "longest_delay_s": 0.002},
    },
    "host_chaos": {
        "forbid": ["peer", "recompute"], "share": 0.0,
        "chaos": {"seed": 3, "longest_delay_s": 0.002},
    },
}  # fmt: skip


class Block(nn.Module):
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
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        hidden = arguments.hidden
        self.token = nn.Embedding(arguments.vocabulary, hidden)
        self.position = nn.Embedding(arguments.length, hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, arguments.heads, arguments.dropout) for _ in range(arguments.layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, arguments.vocabulary, bias=False)
        self.checkpointing = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def fingerprint(model: nn.Module) -> torch.Tensor:
    """Two sums over the bits of every gradient: equal bits, equal sums."""
    sums = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        whole = torch.int16 if parameter.grad.element_size() == 2 else torch.int32
        bits = parameter.grad.contiguous().view(whole).flatten().to(torch.int64)
        place = torch.arange(bits.numel(), device=bits.device) % 65521 + 1
        sums += [bits.sum(), (bits * place).sum()]
    return torch.stack(sums)


@dataclass
class Run:
    """What one mode did, step by step."""

    losses: list[torch.Tensor] = field(default_factory=list)
    prints: list[torch.Tensor] = field(default_factory=list)
    last_gradients: list[torch.Tensor] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)

    def same_as(self, other: Run) -> bool:
        return (
            all(torch.equal(a, b) for a, b in zip(self.losses, other.losses, strict=True))
            and all(torch.equal(a, b) for a, b in zip(self.prints, other.prints, strict=True))
            and all(
                torch.equal(a, b)
                for a, b in zip(self.last_gradients, other.last_gradients, strict=True)
            )
        )

    @property
    def is_flat(self) -> bool:
        return len(set(self.peaks[FLAT_AFTER:])) <= 1 and len(set(self.allocated[FLAT_AFTER:])) <= 1


class Trainer:
    """Makes the same model, batches and optimizer for every mode."""

    def __init__(self, arguments: argparse.Namespace, dtype: torch.dtype) -> None:
        self._arguments = arguments
        self._dtype = dtype

    def model(self) -> GPT:
        torch.manual_seed(0)
        with DEVICE:  # On the processor this alone would take longer than training.
            return GPT(self._arguments).to(self._dtype)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        a = self._arguments
        generator = torch.Generator().manual_seed(1000 + step)
        ids = torch.randint(a.vocabulary, (a.batch, a.length + 1), generator=generator)
        ids = ids.to(DEVICE)
        return ids[:, :-1], ids[:, 1:]

    @functools.cached_property
    def profile(self) -> hf.Profile:
        model = self.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids, targets = self.batch(0)
        return hf.profile(
            model, ids, loss_fn=lambda out: loss_of(out, targets), optimizer=optimizer
        )

    @functools.cached_property
    def plain_step_never_waits(self) -> bool:
        """Whether torch's own step is free of synchronization; only then ours can be held to it."""
        model = self.model()
        ids, targets = self.batch(0)
        for sync_mode in ("default", "error"):
            torch.cuda.set_sync_debug_mode(sync_mode)
            try:
                loss_of(model(ids), targets).backward()
            except RuntimeError as error:
                print(f"syncs are not checked: {str(error)[:200]}", flush=True)
                return False
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return True

    def session(self, model: nn.Module, mode: dict[str, Any]) -> hf.Session | None:
        """The context of a mode, with the smallest budget that works or a share of "nothing"."""
        if "share" not in mode:
            return None
        profile = self.profile
        options = {"profile": profile, "forbid": mode["forbid"]}
        if mode.get("chaos"):
            options["_chaos"] = mode["chaos"]
        try:
            with hf.hyperframes(model, activation_budget=1, **options):
                raise AssertionError("one byte is no budget")
        except hf.ResourceExhausted as refused:
            words = str(refused).split("the smallest activation_budget that works is")[1]
            least = int(words.split("(")[1].split(" bytes")[0])
        share = mode["share"] if self._arguments.share is None else self._arguments.share
        budget = max(least, int(profile.activation_bytes * share))
        return hf.hyperframes(model, activation_budget=budget, **options)

    def train(self, mode: dict[str, Any]) -> Run:
        run = Run()
        model = self.model()
        model.checkpointing = bool(mode.get("checkpointing"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batches = [self.batch(step) for step in range(self._arguments.steps)]
        session = self.session(model, mode)
        torch.manual_seed(7)
        with session if session is not None else nullcontext(model) as inside:
            for ids, targets in batches:
                self._step(inside, optimizer, ids, targets, run)
            run.last_gradients = [
                p.grad.detach().cpu() for p in model.parameters() if p.grad is not None
            ]
        if session is not None:
            run.stats = session.stats()
        return run

    def _step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        ids: torch.Tensor,
        targets: torch.Tensor,
        run: Run,
    ) -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(DEVICE)
        begin = time.perf_counter()
        if len(run.losses) >= FLAT_AFTER and self.plain_step_never_waits:
            torch.cuda.set_sync_debug_mode("error")  # Nobody may wait for the GPU in a step.
        try:
            loss = loss_of(model(ids), targets)
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        run.step_ms.append((time.perf_counter() - begin) * 1e3)
        run.losses.append(loss.detach().cpu())
        del loss
        run.peaks.append(torch.cuda.max_memory_allocated(DEVICE))
        run.prints.append(fingerprint(model).cpu())
        optimizer.step()
        run.allocated.append(torch.cuda.memory_allocated(DEVICE))
        run.reserved.append(torch.cuda.memory_reserved(DEVICE))


def report(name: str, dtype: torch.dtype, run: Run, reference: Run) -> dict[str, Any]:
    engine = run.stats.get("engine", {})
    busy = engine.get("copy_busy", {})

    def per_step(seconds: float) -> float:  # Measured with HYPERFRAMES_MEASURE=1 only.
        return round(1e3 * seconds / len(run.losses), 2)

    steady = sorted(run.step_ms[FLAT_AFTER:]) or [0.0]
    return {
        "mode": name,
        "dtype": str(dtype).removeprefix("torch."),
        "bit_equal": run.same_as(reference),
        "flat": run.is_flat,
        "step_ms": round(steady[len(steady) // 2], 2),
        "slowest_ms": round(steady[-1], 2),
        "peak_mib": round(run.peaks[-1] / 2**20, 1),
        "reserved_mib": round(run.reserved[-1] / 2**20, 1),
        "first_loss": round(float(run.losses[0]), 6),
        "last_loss": round(float(run.losses[-1]), 6),
        "out_mib": {k: round(int(v) / 2**20, 1) for k, v in engine.get("bytes_out", {}).items()},
        "hits": engine.get("prefetch_hits"),
        "misses": engine.get("prefetch_misses"),
        "exposed_ms": per_step(engine.get("exposed_wait", 0.0)),
        "out_ms": {k: per_step(v) for k, v in busy.get("out", {}).items() if v},
        "in_ms": {k: per_step(v) for k, v in busy.get("in", {}).items() if v},
        "overflow": [engine.get("overflow_to_host"), engine.get("overflow_to_keep")],
        "live": engine.get("live_storages"),
        "recomputed": run.stats.get("recomputed_blocks"),
        "unplanned": run.stats.get("unplanned_storages"),
        "held_elsewhere": run.stats.get("held_elsewhere"),
    }


def moved_as_asked(name: str, line: dict[str, Any]) -> bool:
    """A mode that moved nothing proves nothing."""
    tier = name.split("_")[0]
    if tier in ("peer", "host"):
        return line["out_mib"].get(tier, 0) > 0 and line["overflow"] == [0, 0]
    return tier != "recompute" or line["recomputed"] > 0


def run_modes(arguments: argparse.Namespace, dtype: torch.dtype) -> tuple[int, int]:
    """Failures and skips."""
    trainer = Trainer(arguments, dtype)
    print(
        f"activations {trainer.profile.activation_bytes / 2**20:.1f} MiB, torch's own step waits "
        f"for the GPU: {not trainer.plain_step_never_waits}",
        flush=True,
    )
    reference: Run | None = None
    failures = skips = 0
    for name in arguments.modes.split(","):
        mode = MODES[name]
        if mode.get("needs_peer") and twin.gpus() < 2:
            print(json.dumps({"mode": name, "skipped": "needs a second GPU"}), flush=True)
            skips += 1
            continue
        faulthandler.dump_traceback_later(arguments.patience, exit=True)
        begin = time.perf_counter()
        run = trainer.train(mode)
        faulthandler.cancel_dump_traceback_later()
        reference = reference or run
        line = report(name, dtype, run, reference)
        line["whole_s"] = round(time.perf_counter() - begin, 2)
        line["bit_equal"] = line["bit_equal"] or arguments.any_order
        good = line["bit_equal"] and line["flat"] and moved_as_asked(name, line)
        line["ok"] = good
        failures += not good
        print(json.dumps(line), flush=True)
        if not line["flat"]:
            print("  peaks", run.peaks, "allocated", run.allocated, flush=True)
        del run
        torch.cuda.empty_cache()
    return failures, skips


def links() -> None:
    begin = time.perf_counter()
    machine = _native.Machine({"backend": "cuda", "gpu_index": 0})
    described = machine.describe()
    for device in described["devices"]:
        print(json.dumps(device), flush=True)
    for link in described["links"]:
        print(json.dumps(link), flush=True)
    print(f"machine described in {time.perf_counter() - begin:.2f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    flag: Callable[..., Any] = parser.add_argument
    flag("--layers", type=int, default=6)
    flag("--hidden", type=int, default=1024)
    flag("--heads", type=int, default=16)
    flag("--length", type=int, default=2048)
    flag("--batch", type=int, default=4)
    flag("--vocabulary", type=int, default=8192)
    flag("--dropout", type=float, default=0.1)
    flag("--steps", type=int, default=20)
    flag("--share", type=float, help="budget of all modes, as a share of what nothing holds")
    flag("--any-order", action="store_true", help="torch's faster, not repeatable kernels")
    flag("--dtype", default="bfloat16,float32")
    flag("--modes", default=",".join(MODES))
    flag("--patience", type=float, default=90.0, help="seconds per mode before it counts as hung")
    arguments = parser.parse_args()
    faulthandler.enable()
    if not torch.cuda.is_available():
        raise SystemExit("needs a GPU that torch sees")
    torch.use_deterministic_algorithms(not arguments.any_order)
    print(torch.__version__, twin.gpus(), torch.cuda.get_device_name(0), flush=True)
    links()
    failures = skips = 0
    for dtype in arguments.dtype.split(","):
        failed, skipped = run_modes(arguments, getattr(torch, dtype))
        failures, skips = failures + failed, skips + skipped
    print(f"{failures} failed, {skips} skipped", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
