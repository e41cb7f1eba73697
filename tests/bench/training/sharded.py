"""Llama sharded by FSDP2 over all GPUs: the largest batch that trains, and its speed."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import hyperframes as hf

from .hyper import HyperMode, least_budget
from .llama import LlamaTuning, make_llama
from .measure import Meter, OutOfTimeError, forget_frames, time_limit

MODES = ("nothing", "checkpoint", "auto")
_USABLE = 0.94  # Of the cap, as a budget: NCCL's buffers and the allocator's segments need some.
_DOES_NOT_TRAIN = 3  # The worker's exit code; ranks that ran out of memory do not go on together.


class Worker:
    """One rank: proves its mode's gradients, then trains larger and larger batches."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._device: torch.device = args.device
        if self._device.type == "cuda":
            self._device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo",
            timeout=datetime.timedelta(seconds=args.patience),
        )
        trunk = make_llama(args.shape, self._device, args.dtype, lora=args.lora)
        for layer in trunk.llama.model.layers:
            fully_shard(layer)
        fully_shard(trunk)
        self._workload = LlamaTuning(
            trunk, self._device, args.shape["vocab_size"], chunk=args.chunk or None
        )  # fmt: skip
        # What FSDP2 gathers beside a budget: the root's own weights and their gradients (kept from
        # forward to backward), a layer with its gradient, and the next layer.
        layer = sum(p.numel() * p.element_size() for p in trunk.llama.model.layers[0].parameters())
        everything = sum(p.numel() * p.element_size() for p in trunk.parameters())
        root = everything - layer * len(trunk.llama.model.layers)
        self._gathered = 2 * root + 3 * layer
        trained = [p for p in trunk.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-5)
        self._meter = Meter(self._workload, self._device, warms=False)
        self._cap = args.cap
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            self._cap = min(self._cap or total, total)
            torch.cuda.set_per_process_memory_fraction(self._cap / total, self._device)

    def _say(self, text: str) -> None:
        if not self._rank:
            print(text, flush=True)

    @contextlib.contextmanager
    def _mode(self, name: str) -> Iterator[None]:
        """The model trains that way meanwhile, at the workload's present batch."""
        if name != "auto":
            inner = self._workload.checkpointing() if name == "checkpoint" else None
            with self._meter.turn(), inner or contextlib.nullcontext():
                yield
            return
        hyper = HyperMode(
            self._workload, self._profile(), forbid=(), limit=self._budget()
        )  # fmt: skip
        try:
            with self._meter.turn(), hyper.entered():
                yield
        finally:
            hyper.close()

    def _budget(self) -> int:
        return int(self._cap * _USABLE) - int(self._gathered)

    def _profile(self) -> hf.Profile:
        return self._workload.profile(optimizer=self._optimizer)

    def _train(self, steps: int) -> list[float]:
        taken = []
        for _ in range(steps):
            self._meter.synchronize()
            begin = time.perf_counter()
            self._meter.step()
            self._optimizer.step()
            self._meter.clear()
            self._meter.synchronize()
            taken.append(time.perf_counter() - begin)
        return taken

    def prove(self, name: str) -> str:
        """Whether all ranks have the gradients of the plain step."""
        self._workload.set_length(self._args.length, 1)
        with self._mode("nothing"):
            expected = self._meter.fingerprint()
        with self._mode(name):
            found = self._meter.fingerprint()
        differ = torch.tensor([int(not torch.equal(expected, found))], device=self._device)
        dist.all_reduce(differ)
        return "different" if differ.item() else "bit-equal"

    def _needed(self, name: str, batch: int) -> int:
        """Bytes: the peak of a step, or the smallest budget that works."""
        self._workload.set_length(self._args.length, batch)
        if name != "auto":
            with self._mode(name):
                self._meter.start_peak()
                self._train(1)
                return self._meter.peak()
        hyper = HyperMode(self._workload, self._profile(), forbid=(), limit=1)
        try:
            with hyper.entered():
                raise AssertionError("one byte is no budget")
        except hf.ResourceExhausted as error:
            return (least_budget(str(error)) or 0) + int(self._gathered)
        finally:
            hyper.close()

    def predict(self, name: str) -> int:
        """The largest batch by a line through what 1 and 2 sequences need; every rank's is
        rank 0's."""
        self._train(1)  # States of the optimizer exist from here on.
        first, second = self._needed(name, 1), self._needed(name, 2)
        batch = 1 + int((self._cap * _USABLE - first) / max(1, second - first))
        agreed = torch.tensor([max(1, batch)], device=self._device)
        dist.broadcast(agreed, 0)
        self._say(
            f"  {name}: 1 needs {first / 1e9:.2f} GB, 2 {second / 1e9:.2f} GB: try {agreed.item()}"
        )
        return int(agreed.item())

    def trial(self, name: str, batch: int) -> dict[str, Any]:
        """A warm step and timed ones; a row."""
        row: dict[str, Any] = {
            "part": "fsdp2", "length": self._args.length, "mode": name, "batch": batch,
            "gpus": self._world, "lora": self._args.lora, "cap_bytes": self._cap,
        }  # fmt: skip
        self._workload.set_length(self._args.length, batch)
        try:
            with time_limit(self._args.patience, f"{name} with batch {batch}"), self._mode(name):
                self._train(1)
                self._meter.start_peak()
                taken = self._train(self._args.steps)
                row |= {"peak_bytes": self._meter.peak(), "step_ms": [1e3 * t for t in taken]}
        except (torch.OutOfMemoryError, hf.ResourceExhausted, OutOfTimeError) as error:
            forget_frames(error)
            return row | {"trains": False, "why": str(error)[:300]}
        step_s = sorted(taken)[len(taken) // 2]
        row["trains"] = self._device.type == "cuda" or row["peak_bytes"] <= self._cap
        return row | {"tokens_per_s": batch * self._args.length * self._world / step_s}

    def run(self) -> int:
        """Rows go to --rows, one JSON line each, as soon as they are known. Exit code."""
        name = self._args.modes[0]
        verdict = self.prove(name)
        self._say(f"  {name}: gradients {verdict}")
        batch = self._args.batch or self.predict(name)
        while True:
            row = self.trial(name, batch) | {"gradients": verdict}
            gc.collect()
            if not self._rank:
                with Path(self._args.rows).open("a") as file:
                    file.write(json.dumps(row) + "\n")
            words = "does not train"
            if row["trains"]:
                words = f"{row['tokens_per_s']:.0f} tokens/s, peak {row['peak_bytes'] / 1e9:.2f} GB"
            self._say(f"  {name} batch {batch} on {self._world} GPUs: {words}")
            # No barrier behind this: the other ranks may be out of memory, or in the next batch. So
            # gloo may abort this process while Python ends; its rows are written by then.
            if not row["trains"] or time.monotonic() > self._args.until:
                return 0 if row["trains"] else _DOES_NOT_TRAIN
            batch += 1


def launch(
    script: str, words: list[str], gpus: int, rows: Path, seconds: float
) -> tuple[list[dict[str, Any]], int]:
    """One torchrun; the rows it wrote, and its exit code (-1: it ran out of time)."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={gpus}", script, "--part=fsdp2-worker", f"--rows={rows}", *words,
    ]  # fmt: skip
    with contextlib.suppress(FileNotFoundError):
        rows.unlink()
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        code = -1
        os.killpg(process.pid, 15)  # The launcher and its ranks: a session of their own.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
    written = rows.read_text().splitlines() if rows.exists() else []
    return [json.loads(line) for line in written], code


def search(
    script: str,
    words: list[str],
    mode: str,
    gpus: int,
    rows: Path,
    seconds: float,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Launches until the largest batch that trains is known, or the time is over."""
    until = time.monotonic() + seconds
    found: dict[int, dict[str, Any]] = {}
    batch = 0
    while time.monotonic() < until:
        more = [f"--modes={mode}", f"--batch={batch}"]
        got, code = launch(script, words + more, gpus, rows, until - time.monotonic())
        for row in got:
            found[row["batch"]] = row
        tried = sorted(found)
        trained = [b for b in tried if found[b]["trains"]]
        say(f"  {mode}: exit {code}; trained {trained}, tried {tried}")
        if not tried or tried[0] <= 1 or trained:
            break  # Nothing ran; or nothing smaller is there; or it went up until it failed.
        batch = max(1, min(tried[0] - 1, int(tried[0] * 0.94)))
    return list(found.values())


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """HyperFrames at its largest batch against checkpointing at its own."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        good = row["part"] == "fsdp2" and row["trains"] and row["gradients"] == "bit-equal"
        if good and row["batch"] > best.get(row["mode"], {"batch": 0})["batch"]:
            best[row["mode"]] = row
    if not {"auto", "checkpoint"} <= set(best):
        return {}
    mine, theirs = best["auto"], best["checkpoint"]
    return {
        "fsdp2_largest_batch_vs_checkpoint": mine["batch"] / theirs["batch"],
        "fsdp2_throughput_vs_checkpoint": mine["tokens_per_s"] / theirs["tokens_per_s"],
    }
