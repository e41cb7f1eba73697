"""A worker that trains the small GPT over given lengths and writes down what it saw.

    python cluster_worker.py --lengths 64,64,96 --report /tmp/report-{rank}.json

What follows `--rank1-lengths` is rank 1's instead. `--talks` puts a collective into the middle
block. `--hold FILE` waits for that file after half of the steps, so that somebody can look.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hyperframes as hf
from cases.small_gpt import batch, gradients, loss_of, make_gpt
from process_groups import leave_group


class Talking(nn.Module):
    """A block whose forward communicates, as a tensor-parallel one does: it sums over the ranks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        result: torch.Tensor = self.inner(x, **options)
        total = torch.ones(())
        dist.all_reduce(total)
        return result * (total / dist.get_world_size())


def digest(model: nn.Module, loss: torch.Tensor) -> str:
    """Of the loss's and all gradients' bits."""
    seen = hashlib.sha256(loss.detach().numpy().tobytes())
    for gradient in gradients(model):
        if gradient is not None:
            seen.update(gradient.numpy().tobytes())
    return seen.hexdigest()


def hold(until: Path | None) -> None:
    """Until that file is there, or nobody has made it for a minute."""
    deadline = time.monotonic() + 60
    while until is not None and not until.exists():
        assert time.monotonic() < deadline, f"{until} was not made"
        time.sleep(0.02)


def run(args: argparse.Namespace, rank: int) -> dict[str, Any]:
    lengths = [int(word) for word in (args.rank1_lengths or args.lengths).split(",")]
    if rank == 0:
        lengths = [int(word) for word in args.lengths.split(",")]
    model = make_gpt(layers=4, hidden=64, length=256, dropout=0.1)
    if args.talks:
        model.blocks[1] = Talking(model.blocks[1])
    ids, targets = batch(0, lengths[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(7)
    profile = hf.profile(model, ids, loss_fn=lambda o: loss_of(o, targets), optimizer=optimizer)
    session = hf.hyperframes(
        model, profile=profile, activation_budget=args.activation_budget, forbid=args.forbid
    )
    digests, policies, exposed, moved = [], [], [], []
    with session as inside:
        for step, length in enumerate(lengths):
            ids, targets = batch(step + 100 * rank, length)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(inside(ids), targets)
            plan = session.plan
            loss.backward()
            digests.append(digest(model, loss))
            policies.append(dict(plan.policies) if plan is not None else {})
            exposed.append(plan.rank["predicted_exposed_s"] if plan is not None else 0.0)
            moved.append(int(plan.rank["peer_bytes"]) if plan is not None else 0)
            optimizer.step()
            print(f"step {step + 1}/{len(lengths)}", flush=True)
            if 2 * (step + 1) == len(lengths):
                hold(args.hold)
        stats = hf.stats(inside)
    return {
        "digests": digests,
        "policies": policies,
        "exposed_s": exposed,
        "peer_bytes": moved,
        "stats": stats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--rank1-lengths")
    parser.add_argument("--activation-budget")
    parser.add_argument("--forbid", action="append", default=[])
    parser.add_argument("--talks", action="store_true")
    parser.add_argument("--hold", type=Path)
    parser.add_argument("--report", required=True)
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = run(args, rank)
    report["warnings"] = [str(warning.message) for warning in caught]
    Path(args.report.replace("{rank}", str(rank))).write_text(json.dumps(report))
    if world > 1:
        leave_group()


if __name__ == "__main__":
    main()
