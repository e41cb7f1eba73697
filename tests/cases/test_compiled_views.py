"""Compiled blocks that save one storage as several views: one reload, the bits of the plain run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

import hyperframes as hf
from cases.small_gpt import DEVICE, gradients, same_gradients

WIDTH, ROWS, BLOCKS = 64, 128, 4

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="its devices are simulated")


class Unkind:
    """A torch.compile backend whose backward overwrites all that it may: its donated buffers."""

    def __init__(self) -> None:
        self.overwritten = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        partition = functools.partial(min_cut_rematerialization_partition, compiler="inductor")
        backend = aot_autograd(
            fw_compiler=lambda graph, inputs: make_boxed_func(graph.forward),
            bw_compiler=self._backward,
            partition_fn=partition,
        )
        return backend(graph, inputs)

    def _backward(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        context = torch._guards.TracingContext.try_get()
        assert context is not None and context.fw_metadata is not None
        donated = list(context.fw_metadata.bw_donated_idxs or ())

        def run(*args: Any) -> Any:
            results = graph.forward(*args)
            for index in donated:
                args[index].fill_(float("nan"))
            self.overwritten += len(donated)
            return results

        return make_boxed_func(run)


class Halves(nn.Module):
    """Is given two views of one storage, and leaves a storage that the next block is given."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        inner = torch.sigmoid(self.left(right) * self.right(left))
        return torch.cat((left + inner.sin(), right * inner.cos()), -1).tanh()


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.blocks = nn.ModuleList(Halves() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(*x.chunk(2, -1))
        return x


def compiled() -> tuple[Stack, Unkind]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, unkind = Stack(), Unkind()
    for block in model.blocks:
        block.compile(backend=unkind, fullgraph=True)
    return model, unkind


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def sample() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def step(model: nn.Module) -> list[torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss = loss_of(model(sample()))
    loss.backward()
    return [loss.detach(), *gradients(model)]


def smallest(model: nn.Module, profile: hf.Profile) -> int:
    with pytest.raises(hf.ResourceExhausted) as refused:
        hf.hyperframes(model, profile=profile, activation_budget=1).__enter__()
    words = str(refused.value).split("the smallest activation_budget that works is")[1]
    return int(words.split("(")[1].split(" bytes")[0])


@pytest.fixture(autouse=True)
def two_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 64MiB")


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_budget_holds_where_compiled_blocks_save_a_storage_as_two_views(share: float) -> None:
    model, unkind = compiled()
    plain = step(model)
    assert unkind.overwritten
    profile = hf.profile(model, sample(), loss_fn=loss_of)
    least = smallest(model, profile)
    budget = least + int(share * (profile.activation_bytes - least))
    with hf.hyperframes(model, profile=profile, activation_budget=budget) as inside:
        for _ in range(3):
            assert same_gradients(plain, step(inside))
        stats = hf.stats(inside)
    assert sum(stats["engine"]["fetches"].values())
    assert stats["activation_peak"] <= stats["predicted_activation_peak"] <= budget


def test_each_block_that_reads_a_storage_reloads_it_once() -> None:
    model, _ = compiled()
    plain = step(model)
    profile = hf.profile(model, sample(), loss_fn=loss_of)
    least = smallest(model, profile)
    with hf.hyperframes(model, profile=profile, activation_budget=least) as inside:
        assert same_gradients(plain, step(inside))
        engine = hf.stats(inside)["engine"]
    puts, fetches = (sum(engine[word].values()) for word in ("puts", "fetches"))
    # The block that made it and the one that was given its views.
    assert puts < fetches <= 2 * puts


def test_a_retained_backward_reads_again_what_was_saved() -> None:
    def twice(inside: nn.Module) -> list[torch.Tensor | None]:
        inside.zero_grad(set_to_none=True)
        loss = loss_of(inside(sample()))
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(inside)

    with torch._functorch.config.patch(donated_buffer=False):  # Else PyTorch refuses to retain.
        model, unkind = compiled()
        plain = twice(model)
        assert not unkind.overwritten
        profile = hf.profile(model, sample(), loss_fn=loss_of)
        budget = smallest(model, profile)
        with hf.hyperframes(model, profile=profile, activation_budget=budget) as inside:
            assert same_gradients(plain, twice(inside))
