"""A small GPT and the loop that every comparison runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 97

# "cuda" runs every case on a GPU, with real copies.
DEVICE = torch.device(os.environ.get("HYPERFRAMES_TEST_DEVICE", "cpu"))

# Results are compared bit for bit, and test machines are shared.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


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

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:t, :t], float("-inf"))
        y = self.dropout(F.softmax(scores, dim=-1)) @ v
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(
        self, layers: int = 3, hidden: int = 64, heads: int = 4, length: int = 64,
        dropout: float = 0.0, tied: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, hidden)
        self.position = nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.token.weight
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask, persistent=False)
        self.checkpointing = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            if self.checkpointing:
                x = checkpoint(block, x, mask=self.mask, use_reentrant=False)
            else:
                x = block(x, mask=self.mask)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1))


def batch(step: int, length: int = 64, size: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(VOCABULARY, (size, length + 1), generator=generator).to(DEVICE)
    return ids[:, :-1], ids[:, 1:]


Fingerprint = list[tuple[torch.Tensor, list[torch.Tensor | None]]]


def train(
    model: nn.Module,
    steps: int = 3,
    *,
    autocast: torch.dtype | None = None,
    lengths: Callable[[int], int] = lambda step: 64,
    each_step: Callable[[int], Any] = lambda step: None,
) -> Fingerprint:
    """Losses and gradients of every step, with an optimizer between them."""
    torch.manual_seed(7)
    # Weight by weight on every device: kernels for many take no mix of sharded and whole ones.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    seen: Fingerprint = []
    for step in range(steps):
        ids, targets = batch(step, lengths(step))
        optimizer.zero_grad(set_to_none=True)
        context = (
            torch.autocast(DEVICE.type, autocast)
            if autocast is not None
            else contextlib.nullcontext()
        )
        with context:
            loss = loss_of(model(ids), targets)
        loss.backward()
        seen.append((loss.detach().clone(), gradients(model)))
        optimizer.step()
        each_step(step)
    return seen


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def same_gradients(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(first, second, strict=True)
    )


def assert_same(first: Fingerprint, second: Fingerprint) -> None:
    assert len(first) == len(second)
    for step, ((loss_a, grads_a), (loss_b, grads_b)) in enumerate(zip(first, second, strict=True)):
        assert torch.equal(loss_a, loss_b), f"loss of step {step}: {loss_a} and {loss_b}"
        assert same_gradients(grads_a, grads_b), f"gradients of step {step} differ"


def make_gpt(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(**options).to(DEVICE)
