"""Small models made by chance, under budgets between the smallest that works and everything.

Blocks leave storages to the next block, to later ones and to the model outside them; whatever the
plan does, the bits are those of the plain run and the budget holds.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperframes as hf
from cases.shared_storages import make_rotary, make_unet
from cases.small_gpt import DEVICE, gradients, same_gradients

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="its devices are simulated")

ROWS = 32


class Block(nn.Module):
    """A few operators drawn by ``choice``; some save their input, some their result, some both."""

    def __init__(self, width: int, choice: random.Random) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.middle = choice.sample(("gelu", "tanh", "sigmoid", "halves", "again"), 2)
        self.end = choice.choice(("sum", "tanh", "plain"))
        self.skip = choice.choice(("gate", "add"))

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for word in self.middle:
            if word == "halves":
                left, right = y.chunk(2, -1)
                y = torch.cat((left * right, right.sin()), -1)
            elif word == "again":
                y = y + self.first(self.last(y))
            else:
                y = getattr(F if word == "gelu" else torch, word)(y)
        y = self.last(y)
        for other in more:
            y = y * torch.sigmoid(other) * other if self.skip == "gate" else y + other
        return {"sum": x + y, "tanh": torch.tanh(x + y), "plain": y}[self.end]


class Chance(nn.Module):
    """Blocks of which some are given earlier ones' results too, and a tied head perhaps.

    Args:
        keeps: holds every result until its end, as models do that return all hidden states.
    """

    def __init__(self, seed: int, keeps: bool = False) -> None:
        super().__init__()
        choice = random.Random(seed)
        self.keeps = keeps
        width = choice.choice((32, 64))
        self.blocks = nn.ModuleList(Block(width, choice) for _ in range(choice.randint(3, 7)))
        self.sources = [
            [choice.randrange(index) for _ in range(choice.choice((0, 0, 1, 2)))] if index else []
            for index in range(len(self.blocks))
        ]
        self.outside = choice.random() < 0.3  # The model itself reads a block's result.
        self.embed = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, width, bias=False)
        if choice.random() < 0.5:
            self.head.weight = self.embed.weight
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        results: dict[int, torch.Tensor] = {}
        for index, (block, sources) in enumerate(zip(self.blocks, self.sources, strict=True)):
            x = block(x, *(results[source] for source in sources))
            results[index] = x
            for known in list(results):
                if not self._is_read_after(index, known):
                    del results[known]
        if self.outside:
            x = x * results[0].cos()
        return self.head(x)

    def _is_read_after(self, index: int, source: int) -> bool:
        later = any(source in sources for sources in self.sources[index + 1 :])
        return self.keeps or later or (self.outside and source == 0)


def by_chance(seed: int, **options: Any) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    model = Chance(seed, **options)
    return model, torch.randn(ROWS, model.width)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    loss = loss_of(model(x))
    loss.backward()
    return [loss.detach(), *gradients(model)]


def smallest(model: nn.Module, profile: hf.Profile, **options: Any) -> int:
    try:
        with hf.hyperframes(model, profile=profile, activation_budget=1, **options):
            return 1
    except hf.ResourceExhausted as refused:
        words = str(refused).split("the smallest activation_budget that works is")[1]
        return int(words.split("(")[1].split(" bytes")[0])


def check(model: nn.Module, x: torch.Tensor, choice: random.Random, budgets: int = 3) -> None:
    plain = step(model, x)
    profile = hf.profile(model, x, loss_fn=loss_of)
    tried = 0
    for turn in range(budgets):
        options: dict[str, Any] = {"forbid": choice.choice(([], ["recompute"], ["selective"]))}
        least = smallest(model, profile, **options)
        share = choice.random() if turn else 0.0
        budget = least + int(share * max(0, profile.activation_bytes - least))
        context = hf.hyperframes(model, profile=profile, activation_budget=budget, **options)
        try:
            context.__enter__()
        except hf.ResourceExhausted:
            continue  # How fast the links are is measured anew, and with it what the search finds.
        tried += 1
        try:
            for index in range(3):
                context.meter.reset_peak()
                assert same_gradients(plain, step(model, x))
                assert context.plan is not None
                peak, predicted = context.meter.peak_bytes, context.plan.predicted_activation_peak
                what = f"step {index} of {options}, budget {budget}: {peak}, predicted {predicted}"
                assert peak <= predicted <= budget, what
            assert context.stats()["unplanned_storages"] == 0
        finally:
            context.__exit__(None, None, None)
    assert tried > 0, "every budget was refused, so nothing was shown"


@pytest.fixture(autouse=True)
def two_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 64MiB")


@pytest.mark.parametrize("seed", range(12))
def test_whatever_blocks_leave_to_each_other_the_budget_holds_and_the_bits_agree(seed: int) -> None:
    model, x = by_chance(seed)
    check(model, x, random.Random(seed))


@pytest.mark.parametrize("seed", range(8))
def test_what_the_model_itself_holds_until_its_end_is_counted_where_it_is(seed: int) -> None:
    model, x = by_chance(seed, keeps=True)
    check(model, x, random.Random(seed))


@pytest.mark.parametrize("make", [make_unet, make_rotary])
def test_skips_and_rotary_embeddings_keep_to_every_budget(make: Any) -> None:
    model, x = make()
    check(model, x, random.Random(1), budgets=5)


def test_skips_too_small_to_move_wait_where_their_block_runs_again() -> None:
    model, x = make_unet(levels=5)
    for seed in (2, 3):
        check(model, x, random.Random(seed))
