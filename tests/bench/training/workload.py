"""The model of the fine-tune benchmark, and what a benchmark asks of any model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import hyperframes as hf

Around = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Workload(Protocol):
    """A model with one batch. ``loss`` runs the forward."""

    length: int
    tokens: int

    @property
    def model(self) -> nn.Module: ...

    def loss(self) -> torch.Tensor: ...

    def profile(self) -> hf.Profile: ...

    def blocks(self) -> list[nn.Module]: ...

    def checkpointing(self, **options: Any) -> contextlib.AbstractContextManager[None]:
        """Every block under torch's checkpoint without reentrance, with its further options."""
        ...

    def around(self, call: Around) -> contextlib.AbstractContextManager[None]:
        """Every block is called by ``call``."""
        ...


class Block(nn.Module):
    """A decoder layer: causal attention and SwiGLU, without biases."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        inner = (int(8 * hidden / 3 / 256) + 1) * 256
        self.heads = heads
        self.attention_norm = nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(self.attention_norm(x))
        qkv = qkv.view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, hidden))
        y = self.mlp_norm(x)
        result: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


class Stack(nn.Module):
    """Hidden states in, hidden states out."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.around: Around | None = None  # How a block is called, where not simply.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.around is None else self.around(block, x)
        return x


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """The mean square: its backward reaches everything, and it needs no targets."""
    return output.float().pow(2).mean()


class FineTune:
    """BASELINES of this project: 16 layers, hidden 4096, batch 1, forward and backward.

    Args:
        alike: blocks that a profile measures, and takes the rest to be as the last but one of
            these: a profile of all takes the time of three steps. 0: all.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        layers: int,
        hidden: int,
        heads: int,
        dtype: torch.dtype,
        alike: int = 0,
    ) -> None:
        torch.manual_seed(0)
        with device:
            self.model: Stack = Stack(layers, hidden, heads).to(dtype)
        self._device, self._hidden, self._dtype = device, hidden, dtype
        self._alike = alike
        self.length = self.tokens = 0

    def set_length(self, length: int) -> None:
        """A new batch of one sequence."""
        self.length = self.tokens = length
        generator = torch.Generator(self._device).manual_seed(1)
        shape = (1, length, self._hidden)
        self._x = torch.randn(
            shape, device=self._device, dtype=self._dtype, generator=generator
        )  # fmt: skip

    def batch(self) -> torch.Tensor:
        """The hidden states that go in: 1 x length x hidden."""
        return self._x

    def blocks(self) -> list[nn.Module]:
        return list(self.model.blocks)

    def loss(self) -> torch.Tensor:
        return loss_of(self.model(self._x))

    def profile(self) -> hf.Profile:
        blocks = self.model.blocks
        if not 2 < self._alike < len(blocks):
            return hf.profile(self.model, self._x, loss_fn=loss_of)
        self.model.blocks = nn.ModuleList([*blocks[: self._alike - 1], blocks[-1]])
        try:
            few = hf.profile(self.model, self._x, loss_fn=loss_of)
        finally:
            self.model.blocks = blocks
        return _of_all(few, self._alike, len(blocks))

    @contextlib.contextmanager
    def around(self, call: Around) -> Iterator[None]:
        """Blocks are called by ``call`` meanwhile."""
        self.model.around = call
        try:
            yield
        finally:
            self.model.around = None

    def checkpointing(self, **options: Any) -> contextlib.AbstractContextManager[None]:
        def call(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = checkpoint(block, x, use_reentrant=False, **options)
            return result

        return self.around(call)


def _of_all(few: hf.Profile, measured: int, count: int) -> hf.Profile:
    """The profile of a stack of ``count`` blocks from that of its first ``measured`` - 1 and its
    last one, which are all there is in it but the loss."""
    assert not any(block.shared for block in few.blocks), "blocks that read each other's storages"
    by = {block.name: block for block in few.blocks}
    typical = by[f"blocks.{measured - 2}"]
    blocks = []
    for block in few.blocks:
        if block.name == f"blocks.{measured - 1}":
            blocks += [
                dataclasses.replace(typical, name=f"blocks.{index}")
                for index in range(measured - 1, count - 1)
            ]
            block = dataclasses.replace(block, name=f"blocks.{count - 1}")
        blocks.append(block)

    def scaled(nbytes: int) -> int:
        return nbytes // measured * count

    return dataclasses.replace(
        few, blocks=blocks, parameter_bytes=scaled(few.parameter_bytes),
        gradient_bytes=scaled(few.gradient_bytes), parameters=scaled(few.parameters),
    )  # fmt: skip


def pinned_attention(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """One attention kernel for all modes: another one would have other bits."""
    backends = [SDPBackend.FLASH_ATTENTION]
    if device.type == "cpu":
        backends.append(SDPBackend.MATH)
    pinned: contextlib.AbstractContextManager[None] = sdpa_kernel(backends)
    return pinned
