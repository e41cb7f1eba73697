"""A rank of the jobs of across_nodes.py: trains the fine-tune's model and times its steps.

    python across_nodes_worker.py --report /tmp/report.json --share 0.4 --length 4096

Everything that does not fit the share of the activations is moved: nothing may be computed again.
With HYPERFRAMES_MODE=off it trains plainly, which is what the others' bits are compared with.
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
from bench.training.measure import bit_sums
from bench.training.workload import FineTune, pinned_attention


def digest(workload: FineTune, loss: torch.Tensor) -> str:
    """Of the loss's and all gradients' bits: summed where they are, for gigabytes of gradients
    would take longer to the processor than the step took."""
    sums = bit_sums(loss.detach())
    for parameter in workload.model.parameters():
        if parameter.grad is not None:
            sums += bit_sums(parameter.grad)
    return hashlib.sha256(torch.stack(sums).cpu().numpy().tobytes()).hexdigest()


def train(args: argparse.Namespace) -> dict[str, Any]:
    real = os.environ.get("HYPERFRAMES_BACKEND") == "cuda"
    device = torch.device("cuda", 0) if real else torch.device("cpu")
    if not real:
        torch.set_num_threads(1)
    workload = FineTune(
        device, layers=args.layers, hidden=args.hidden, heads=args.heads,
        dtype=torch.bfloat16 if real else torch.float32,
    )  # fmt: skip
    workload.set_length(args.length)
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=1e-3)
    options: dict[str, Any] = {}
    if os.environ.get("HYPERFRAMES_MODE") != "off":
        profile = workload.profile()
        options = {
            "profile": profile,
            "activation_budget": int(profile.activation_bytes * args.share),
            "forbid": ["recompute", "selective"],
        }

    def finished() -> float:
        if real:
            torch.cuda.synchronize()
        return time.perf_counter()

    digests, seconds = [], []
    with hf.hyperframes(workload.model, **options) as model:
        for step in range(args.warm + args.steps):
            started = finished()
            optimizer.zero_grad(set_to_none=True)
            loss = workload.loss()
            torch.autograd.backward(loss)
            optimizer.step()
            took = finished() - started
            if step >= args.warm:
                seconds.append(took)
            digests.append(digest(workload, loss))
        stats = hf.stats(model) if options else {}
    return {
        "digests": digests,
        "step_s": seconds,
        "tokens": workload.tokens,
        "peer_bytes": stats.get("peer_bytes", 0),
        "host_bytes": stats.get("host_bytes", 0),
        "leases": stats.get("leases", []),
    }


def main() -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(180, exit=True)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--share", type=float, required=True)
    for name in ("length", "layers", "hidden", "heads", "warm", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    with pinned_attention(torch.device("cpu")):
        args.report.write_text(json.dumps(train(args)))


if __name__ == "__main__":
    main()
