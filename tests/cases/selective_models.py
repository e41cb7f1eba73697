"""Blocks that a second run below autograd could trip over, and the loop that compares them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import hyperframes as hf
from cases.backends import BACKENDS
from cases.small_gpt import DEVICE, Fingerprint, gradients

WIDTH, ROWS = 64, 32


class Stack(nn.Module):
    """Two of the given blocks between linear layers."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([make(), make()])
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def stack(make: Callable[[], nn.Module]) -> Stack:
    return Stack(make).to(DEVICE)


def sample() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, ROWS, WIDTH, generator=generator).to(DEVICE)


def steps(
    model: nn.Module, count: int = 2, *, backward: Callable[[torch.Tensor], None] | None = None
) -> Fingerprint:
    """Losses and gradients of a few steps."""
    torch.manual_seed(3)
    seen: Fingerprint = []
    for _ in range(count):
        model.zero_grad(set_to_none=True)
        loss = model(sample()).square().mean()
        (backward or torch.autograd.backward)(loss)
        seen.append((loss.detach().clone(), gradients(model)))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad)
    return seen


def selective(model: nn.Module, tier: str = "", backend: str = "native", **options: Any) -> Any:
    """The model's session, in which all layers are SELECTIVE with every candidate saved."""
    profile = hf.profile(model, sample(), **options)
    rule = BACKENDS[backend](lambda block, storage: f"selective:{tier}")
    return hf.hyperframes(model, profile=profile, _backend=rule, activation_budget="1GiB")


class Grouped(nn.Module):
    """Attention with fewer keys than queries, by the fused operator."""

    def __init__(self, heads: int = 8, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.size = WIDTH // heads
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (heads + 2 * groups) * self.size)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        wide = self.qkv(self.norm(x)).view(b, t, -1, self.size).transpose(1, 2)
        q, k, v = wide.split([self.heads, self.groups, self.groups], dim=1)
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class InPlace(nn.Module):
    """Writes to outputs of operators, whole and through views."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu_()
        wide = self.b(h)
        left, right = wide[..., : WIDTH // 2], wide[..., WIDTH // 2 :]
        left.mul_(0.5)
        right.add_(left)
        y = self.c(wide)
        y += x
        return torch.tanh(y)


class Experts(nn.Module):
    """Each token goes to the two experts that like it most."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        weights, chosen = torch.topk(F.softmax(self.router(flat), dim=-1), 2, dim=-1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            token, place = torch.nonzero(chosen == index, as_tuple=True)
            if token.numel():
                y = expert(flat[token]) * weights[token, place].unsqueeze(-1)
                out = out.index_add(0, token, y)
        return x + out.view_as(x)


class Noisy(nn.Module):
    """Draws random numbers in an operator that may be saved, and again after it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x) * torch.bernoulli(torch.full_like(x, 0.5))
        return x + F.dropout(self.b(F.gelu(h)), 0.3) * torch.rand_like(x)


class ReadsTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _ = ctx.saved_tensors
        x, y = ctx.saved_tensors
        return gradients[0] * y.cos() * x.exp()


class Custom(nn.Module):
    """A Function that reads what it saved twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = ReadsTwice.apply(self.a(x))
        return x + self.b(y)


class Shares(nn.Module):
    """Leaves the output of an operator behind, that backward does not need.

    Without a bias it is a view whose version counter is not that of the operator's output.
    """

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH)
        self.left: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        self.left = h.detach()
        return self.b(torch.tanh(h + x))


class Tables(nn.Module):
    """Makes a table at its first call, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            grid = torch.outer(torch.arange(x.shape[1]), torch.arange(WIDTH)) / WIDTH
            self.table = torch.cos(grid @ torch.eye(WIDTH)).to(x.device)
        return x + self.b(F.gelu(self.a(x) * self.table))


class Secret(nn.Module):
    """Writes to an output behind autograd's back; a plain run does not mind."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h.detach().cpu().numpy()[...] += 1.0
        return x + self.b(F.gelu(h))


class RandomGraph(nn.Module):
    """A random sequence of operators on a few tensors."""

    def __init__(self, seed: int, length: int = 18) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5) for _ in range(3)
        )
        kinds = list(_KINDS)
        self.program = [(draw.choice(kinds), draw.random(), draw.random()) for _ in range(length)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x * 1.0, x + 0.5]
        for kind, first, second in self.program:
            a = values[int(first * len(values))]
            b = values[int(second * len(values))]
            values.append(_KINDS[kind](a, b, self.weights[int(first * 3)]))
            values = values[-4:]
        return torch.tanh(values[0] + values[-1]) + x


def _write_to_a_view(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = a @ w
    y[..., : WIDTH // 2].mul_(0.5)
    return y


def _two_outputs(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    values, _ = torch.sort(a, dim=-1)
    return values + b


_KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": lambda a, b, w: a @ w,
    "attention": lambda a, b, w: F.softmax(a @ b.transpose(-1, -2) / 8, dim=-1) @ b,
    "fused": lambda a, b, w: F.scaled_dot_product_attention(a[:, None], b[:, None], a[:, None])[
        :, 0
    ],
    "add": lambda a, b, w: a + b,
    "multiply": lambda a, b, w: torch.tanh(a) * b,
    "norm": lambda a, b, w: F.layer_norm(a, (WIDTH,)),
    "gelu": lambda a, b, w: F.gelu(a),
    "dropout": lambda a, b, w: F.dropout(a, 0.2),
    "noise": lambda a, b, w: a * torch.rand_like(b),
    "in place": lambda a, b, w: (a @ w).relu_(),
    "view in place": _write_to_a_view,
    "split": lambda a, b, w: torch.cat(list(reversed((a @ w).chunk(2, dim=-1))), dim=-1),
    "sort": _two_outputs,
    "transpose": lambda a, b, w: a @ (b.transpose(1, 2) @ a).tanh() / WIDTH,
    "half": lambda a, b, w: (a.bfloat16() @ w.bfloat16()).float(),
}
