"""Models in which blocks read again what other blocks left: a U with skips, rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cases.small_gpt import DEVICE


class Down(nn.Module):
    """Leaves its result, which the block of the same level on the way up is given too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.outer(F.gelu(self.inner(x))))


class Up(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        x = x + torch.sigmoid(self.gate(x)) * skip
        return x + self.outer(F.gelu(self.inner(x)))


class UNet(nn.Module):
    """The token dimension is halved on the way down and doubled on the way up."""

    def __init__(self, width: int = 64, levels: int = 3) -> None:
        super().__init__()
        self.down = nn.ModuleList(Down(width) for _ in range(levels))
        self.middle = Down(width)
        self.up = nn.ModuleList(Up(width) for _ in range(levels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.avg_pool1d(x.transpose(1, 2), 2).transpose(1, 2)
        x = self.middle(x)
        for block in self.up:
            x = block(x.repeat_interleave(2, dim=1), skips.pop())
        return x


class Rotary(nn.Module):
    """Angles that are learned, so that they are made anew in every step."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(10000.0 ** (-torch.arange(0, size, 2) / size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
        angles = torch.outer(positions, self.frequencies).repeat(1, 2)
        return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        scores = F.softmax(q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5, dim=-1)
        return x + self.out((scores @ v).transpose(1, 2).reshape(b, t, c))


class RotaryGPT(nn.Module):
    """``outside``: the model itself makes the angles, in no block."""

    def __init__(
        self, width: int = 64, layers: int = 4, heads: int = 1, outside: bool = False
    ) -> None:
        super().__init__()
        self.rotary = Rotary(width // heads)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.outside = outside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.rotary(x)
        if self.outside:
            cos, sin = cos * cos.detach().exp(), sin * sin
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def make_unet(**options: Any) -> tuple[nn.Module, torch.Tensor]:
    """The model, and an input for it."""
    torch.manual_seed(0)
    return UNet(**options).to(DEVICE), torch.randn(2, 64, 64, device=DEVICE)


def make_rotary(**options: Any) -> tuple[nn.Module, torch.Tensor]:
    """The model, and an input for it."""
    torch.manual_seed(0)
    return RotaryGPT(**options).to(DEVICE), torch.randn(1, 64, 64, device=DEVICE)
