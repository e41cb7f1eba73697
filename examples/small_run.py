"""What the examples of the ecosystem share: their flags, their data, and their report.

`python examples/X.py --report FILE` writes losses as exact hexadecimal floats, a digest of all
parameters after training, and what HyperFrames did, so that a run under `HYPERFRAMES_MODE=off` can
be compared with one that is on, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stdlib_text import stdlib_bytes
from train_gpt import GPT, loss_of

LENGTH = 128


class TextDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Windows of the standard library's sources, as transformers' models want them.

    `labels` are the same bytes: these models shift them by themselves.
    """

    def __init__(self, count: int, length: int, *, start: int = 0) -> None:
        text = bytearray(stdlib_bytes()[start : start + count * length])
        self._windows = torch.frombuffer(text, dtype=torch.uint8).long().view(count, length)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self._windows[index]
        return {"input_ids": window, "labels": window.clone()}


def make_gpt(layers: int = 4) -> GPT:
    """train_gpt.py's model, small: token ids [B, T] to logits [B, T, 256]."""
    return GPT(
        argparse.Namespace(
            hidden=64, heads=4, length=LENGTH, layers=layers, dropout=0.1, mode="nothing"
        )
    )


def any_loss(logits: torch.Tensor) -> torch.Tensor:
    """For a profile, where the loss is computed outside the model: what it saves does not depend on
    the targets."""
    targets = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
    return loss_of(logits, targets)


def parser_of_flags(description: str | None) -> argparse.ArgumentParser:
    """--steps, --activation-budget, --report."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps")
    parser.add_argument(
        "--activation-budget", metavar="SIZE", help="such as 2GiB; without it the recommended one"
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write the outcome there; {rank} is replaced"
    )
    return parser


def start(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The flags; from now on every sum is made in one order, for bits are compared."""
    args = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    return args


def digest(model: nn.Module) -> str:
    """sha256 over all parameters, in their order; names do not count, for wrappers prefix them."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        values = whole.detach().cpu().contiguous().view(-1).view(torch.uint8)
        found.update(values.numpy().tobytes())
    return found.hexdigest()


def save_report(
    path: str | None,
    losses: Iterable[float],
    model: nn.Module,
    frames: Mapping[str, Any],
    rank: int = 0,
) -> None:
    """Prints the outcome, and writes it to `path` if there is one. Every rank calls it."""
    report: dict[str, Any] = {
        "losses": [float(loss).hex() for loss in losses],
        "parameters": digest(model),
        "frames": dict(frames),
    }
    moved = frames.get("peer_bytes", 0) + frames.get("host_bytes", 0)
    print(
        f"losses {' '.join(f'{float.fromhex(loss):.4f}' for loss in report['losses'])}; moved"
        f" {moved / 2**20:.2f} MiB and recomputed {frames.get('recomputed_bytes', 0) / 2**20:.2f}"
        f" MiB per step; parameters {report['parameters'][:12]}",
        flush=True,
    )
    if path:
        Path(path.replace("{rank}", str(rank))).write_text(json.dumps(report))
