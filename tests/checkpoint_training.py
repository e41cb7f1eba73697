"""A training to be killed and continued: two ranks, dropout, accumulation, shuffled data.

Every micro-batch's id and loss is written down at once, so that a killed run's are known too. Ranks
are forked from one process that has torch loaded, because most of a short run is importing it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hyperframes as hf
from process_groups import leave_group

ROOT = Path(__file__).resolve().parents[1]
Losses = dict[int, str]  # Hexadecimal floats by micro-batch id.


@dataclass
class Run:
    """What one start of the training does."""

    directory: str
    results: str  # Where losses, outcomes and output of the ranks go.
    steps: int = 6
    world: int = 2
    every: int = 2
    keep: int = 1
    asynchronous: bool = True
    strict: bool = True
    sharded: bool = False
    framed: bool = False  # Under an open HyperFrames context.
    budget: str = ""
    width: int = 16
    kill_at: tuple[int, int] | None = None  # Rank, and micro-batch after whose backward it dies.
    step_every_micro_batch: bool = False
    pause_s: float = 0.0  # In every step: real time, for limits that are counted in it.
    hold: str = ""  # A file: no rank begins its second step before it is there.
    continue_after_failure: bool = False
    committer: Any = None
    environment: dict[str, str] = field(default_factory=dict)
    file_limits: dict[int, int] = field(default_factory=dict)  # Bytes by rank, until a failure.
    slow_save_s: float = 0.0  # What copying the state takes, of a grace in real time.


class Shuffled:
    """A stateful loader: a new order for every epoch, drawn from a generator of its own."""

    def __init__(self, rank: int, size: int = 7) -> None:
        self._data = torch.randn(size, 4, 8, generator=torch.Generator().manual_seed(40 + rank))
        self._generator = torch.Generator().manual_seed(rank)
        self._order: list[int] = []

    def next(self) -> torch.Tensor:
        if not self._order:
            self._order = torch.randperm(len(self._data), generator=self._generator).tolist()
        return self._data[self._order.pop()]

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self._order), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = list(state["order"])
        self._generator.set_state(state["generator"])


class Slow:
    """Takes its time to say what is to be saved."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def state_dict(self) -> dict[str, Any]:
        time.sleep(self._seconds)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(self.dropout(self.norm(self.up(x)).tanh()))
        return result


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(x).square().mean()
        return result


def _wrapped(run: Run) -> nn.Module:
    torch.manual_seed(1)  # The same weights everywhere.
    net = Net(run.width)
    if run.sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=init_device_mesh("cpu", (run.world,)))
        return net
    return nn.parallel.DistributedDataParallel(net) if run.world > 1 else net


def _loop(run: Run, rank: int, write: Callable[[dict[str, Any]], Any]) -> None:
    model = _wrapped(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    loader = Shuffled(rank)
    torch.manual_seed(100 + rank)
    random.seed(rank)
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(
            hf.checkpoint(
                run.directory,
                model=model,
                optimizer=optimizer,
                loader=loader,
                extra={"scheduler": scheduler, "slow": Slow(run.slow_save_s)},
                every=run.every,
                keep=run.keep,
                asynchronous=run.asynchronous,
                timeout_s=100,
                _committer=run.committer,
            )
        )
        start = checkpoints.resume(strict=run.strict)
        write({"start": start, "micro_batches": checkpoints.micro_batches})
        if run.framed:
            model = stack.enter_context(
                hf.hyperframes(model, sample_input=torch.zeros(4, 8), activation_budget=run.budget)
            )
        for step in range(start, run.steps):
            while run.hold and step == start + 1 and not Path(run.hold).exists():
                time.sleep(0.01)
            for index in range(2):
                number = checkpoints.micro_batches
                loss = model(loader.next()) * (1 + random.random())
                loss.backward()
                write({"id": number, "loss": loss.item().hex()})
                if run.kill_at == (rank, number):
                    os.kill(os.getpid(), signal.SIGKILL)
                if run.step_every_micro_batch and index == 0:
                    assert not checkpoints.step(), "no superframe ends between two micro-batches"
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            time.sleep(run.pause_s)
            try:
                if checkpoints.step():
                    write({"stopped": True})
                    break
            except hf.HyperFramesError as error:
                write({"error": str(error), "type": type(error).__name__})
                if not run.continue_after_failure:
                    raise
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        checkpoints.wait()
        if run.framed:
            seen = hf.stats(model)
            moved = sum(seen[key] for key in ("peer_bytes", "host_bytes", "recomputed_bytes"))
            write({"bytes_not_kept": moved})
        write({"ended": True, **checkpoints.stats(), "order_table": checkpoints.order_table})


def train(run: Run, rank: int, rendezvous: str) -> None:
    """One rank; the entry of a forked process."""
    if rendezvous:
        output = os.open(f"{run.results}/output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
    os.environ.update({"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", **run.environment})
    torch.set_num_threads(1)
    if rank in run.file_limits:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (run.file_limits[rank], hard))
    if run.world > 1:
        where = f"file://{rendezvous}" if rendezvous else "env://"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=run.world)
    with open(f"{run.results}/rank-{rank}.jsonl", "a", encoding="ascii", buffering=1) as lines:

        def write(value: dict[str, Any]) -> None:
            lines.write(json.dumps(value) + "\n")

        _loop(run, rank, write)
    if run.world > 1 and rendezvous:
        dist.destroy_process_group()  # A forked rank ends without the end of Python.
    elif run.world > 1:
        leave_group()


def alone(run: Run) -> Losses:
    """A single rank in this process; what it has written down is in lines(run, 0)."""
    Path(run.results).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # As train() does: bits depend on it.
    run.world = 1
    with open(f"{run.results}/rank-0.jsonl", "a", encoding="ascii", buffering=1) as out:
        _loop(run, 0, lambda value: out.write(json.dumps(value) + "\n"))
    return losses(run, 0)


_context = multiprocessing.get_context("forkserver")
_starts = 0


def start(run: Run) -> list[BaseProcess]:
    """Starts all ranks; their exit codes are those of the processes."""
    global _starts
    _starts += 1
    paths = [str(ROOT / "client" / "python"), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ["OMP_NUM_THREADS"] = "1"
    # pytest, because every child imports the parent's main module.
    _context.set_forkserver_preload(["checkpoint_training", "hyperframes._checkpoint", "pytest"])
    Path(run.results).mkdir(parents=True, exist_ok=True)
    rendezvous = f"{run.results}/rendezvous-{_starts}"
    processes: list[BaseProcess] = [
        _context.Process(target=train, args=(run, rank, rendezvous)) for rank in range(run.world)
    ]
    for process in processes:
        process.start()
    return processes


def finish(processes: list[BaseProcess], timeout_s: float = 150.0) -> list[int]:
    """Exit codes by rank; minus the signal's number where one ended it."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        process.kill()
        process.join()
    assert not late, f"{len(late)} ranks did not end within {timeout_s} s"
    return [int(process.exitcode or 0) for process in processes]


def launch(run: Run) -> list[int]:
    """Starts all ranks and waits for them."""
    return finish(start(run))


def lines(run: Run, rank: int) -> list[dict[str, Any]]:
    """What a rank has written down in all starts with these results."""
    path = Path(run.results) / f"rank-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run: Run, rank: int) -> Losses:
    """By micro-batch; those that ran more than once have to be the same each time."""
    found: Losses = {}
    for line in lines(run, rank):
        if "id" in line:
            same = found.setdefault(line["id"], line["loss"]) == line["loss"]
            assert same, f"rank {rank}, micro-batch {line['id']}: {line['loss']} the second time"
    return found


def output(run: Run, rank: int = 0) -> str:
    """What a rank has printed."""
    path = Path(run.results) / f"output-{rank}"
    return path.read_text() if path.exists() else ""


def main() -> None:
    """As a worker of a job: rank, world and rendezvous come from torchrun's variables."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--slow-save", type=float, default=0.0)
    parser.add_argument("--die-at", type=int, help="micro-batch at which the last rank dies, once")
    parser.add_argument("--failpoint", help="name[:rank[:pass]], for the first start only")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    run = Run(
        args.directory, args.results, args.steps, world, args.every, args.keep,
        pause_s=args.pause, slow_save_s=args.slow_save,
        kill_at=(world - 1, args.die_at) if args.die_at is not None and first else None,
    )  # fmt: skip
    if first and args.failpoint:
        run.environment["HYPERFRAMES_FAILPOINT"] = args.failpoint
    Path(run.results).mkdir(parents=True, exist_ok=True)
    train(run, rank, "")


if __name__ == "__main__":
    main()
