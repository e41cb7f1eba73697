"""Blocks on which module.compile() was called stay compiled under HyperFrames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.utils import counters

import hyperframes as hf


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return result


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Compiled:
    """A model of compiled blocks; ``graphs`` counts what was compiled for it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.graphs = 0
        self.model = Stack()
        for block in self.model.blocks:
            block.compile(backend=self._compile, dynamic=False)
        self.x = torch.randn(8, 32, 64, requires_grad=True)

    def _compile(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return lookup_backend("aot_eager")(graph, inputs)

    def step(self) -> list[torch.Tensor]:
        self.model.zero_grad()
        torch.autograd.backward(self.model(self.x).square().mean())
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiled]:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 64MiB")
    torch._dynamo.reset()
    counters.clear()
    yield Compiled()
    torch._dynamo.reset()


def test_profile_and_session_compile_nothing_anew_and_break_no_graph(compiled: Compiled) -> None:
    plain = compiled.step()
    graphs, calls = compiled.graphs, [b._compiled_call_impl for b in compiled.model.blocks]
    counters["graph_break"].clear()
    profile = hf.profile(compiled.model, compiled.x, loss_fn=lambda out: out.square().mean())
    assert not any(b.keep_reason for b in profile.blocks if "blocks" in b.name)
    with hf.hyperframes(
        compiled.model, profile=profile, forbid=["host", "recompute"],
        activation_budget=int(0.8 * profile.activation_bytes),
    ):  # fmt: skip
        framed = [compiled.step() for _ in range(3)][-1]
    assert compiled.graphs == graphs
    assert not counters["graph_break"]
    assert all(torch.equal(a, b) for a, b in zip(plain, framed, strict=True))
    stats = hf.stats(compiled.model)
    assert stats["peer_bytes"] > 0 and not stats["unplanned_storages"]
    assert [b._compiled_call_impl for b in compiled.model.blocks] == calls


def test_an_error_inside_a_compiled_block_leaves_the_context_in_order(compiled: Compiled) -> None:
    plain = compiled.step()
    profile = hf.profile(compiled.model, compiled.x, loss_fn=lambda out: out.square().mean())
    with hf.hyperframes(
        compiled.model, profile=profile, activation_budget=profile.activation_bytes
    ):
        with pytest.raises((RuntimeError, TypeError)):
            compiled.model(torch.randn(8, 32, 63))
        after = compiled.step()
    assert all(torch.equal(a, b) for a, b in zip(plain, after, strict=True))
