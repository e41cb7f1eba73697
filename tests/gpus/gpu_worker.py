"""A rank of the job that cluster_on_gpus.py submits: trains the small GPT and writes what it saw.

    python tests/gpus/gpu_worker.py --report /tmp/report.json --steps 100 --forbid host

Runs plainly with HYPERFRAMES_MODE=off, and on the processor where its agent simulates GPUs.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

import hyperframes as hf
from gpus.train_on_gpus import GPT, loss_of


def digest(tensors: list[torch.Tensor]) -> str:
    seen = hashlib.sha256()
    for tensor in tensors:
        whole = torch.int16 if tensor.element_size() == 2 else torch.int32
        seen.update(tensor.detach().contiguous().view(whole).cpu().numpy().tobytes())
    return seen.hexdigest()


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    real = os.environ.get("HYPERFRAMES_BACKEND") == "cuda"
    device = torch.device("cuda:0" if real else "cpu")
    dtype = torch.bfloat16 if real else torch.float32
    torch.manual_seed(0)
    with device:
        model = GPT(arguments).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 + step)
        size = (arguments.batch, arguments.length + 1)
        ids = torch.randint(arguments.vocabulary, size, generator=generator).to(device)
        return ids[:, :-1], ids[:, 1:]

    ids, targets = batch(0)
    options: dict[str, Any] = {}
    if os.environ.get("HYPERFRAMES_MODE") != "off":
        profile = hf.profile(
            model, ids, loss_fn=lambda out: loss_of(out, targets), optimizer=optimizer
        )
        options = {
            "profile": profile,
            "activation_budget": int(profile.activation_bytes * arguments.share),
            "forbid": arguments.forbid,
        }
    session = hf.hyperframes(model, **options)
    torch.manual_seed(7)
    losses: list[str] = []
    ended: list[float] = []
    with session as inside:
        for step in range(arguments.steps):
            ids, targets = batch(step)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(inside(ids), targets)
            loss.backward()
            optimizer.step()
            losses.append(digest([loss]))  # Waits for the step.
            ended.append(time.time())
            print(f"step {step + 1}/{arguments.steps}", flush=True)
        gradients = digest([p.grad for p in model.parameters() if p.grad is not None])
        weights = digest(list(model.parameters()))
    return {
        "losses": losses,
        "gradients": gradients,
        "weights": weights,
        "ended": ended,
        "visible": torch.cuda.device_count() if real else 0,
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith("HYPERFRAMES_") or name == "CUDA_VISIBLE_DEVICES"
            if "TOKEN" not in name
        },
        "stats": session.stats() if options else {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--report", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.6, help="budget, as a share of nothing's")
    parser.add_argument("--forbid", action="append", default=[])
    for name, default in (
        ("layers", 8), ("hidden", 512), ("heads", 8), ("length", 1024), ("batch", 4),
        ("vocabulary", 8192),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    arguments = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(120, exit=True)
    torch.use_deterministic_algorithms(True)
    report = train(arguments)
    Path(arguments.report).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
