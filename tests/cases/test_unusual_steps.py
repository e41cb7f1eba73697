"""Cases T25 and T26: steps that are more than one forward and one backward."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from cases.framing import framed
from cases.small_gpt import (
    DEVICE,
    GPT,
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
    train,
)


def test_t25_accumulation_clipping_and_a_scaler_with_an_inf_step(
    rule: Any, backend_name: str
) -> None:
    def run(model: nn.Module) -> list[Any]:
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.GradScaler(DEVICE.type, init_scale=4.0)
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            for micro in range(4):
                ids, targets = batch(4 * step + micro)
                loss = loss_of(model(ids), targets) * (float("inf") if step == 1 else 1.0)
                scaler.scale(loss / 4).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            seen.append([g.nan_to_num() for g in gradients(model) if g is not None])
            scaler.step(optimizer)
            scaler.update()
        return seen

    plain = run(make_gpt())
    with framed(make_gpt(), rule, backend_name) as inside:
        found = run(inside)
    assert all(same_gradients(a, b) for a, b in zip(plain, found, strict=True))


def test_t25_several_forwards_before_their_backwards(rule: Any, backend_name: str) -> None:
    def run(model: nn.Module) -> list[Any]:
        losses = [loss_of(model(batch(i)[0]), batch(i)[1]) for i in range(3)]
        sum(losses[1:], losses[0]).backward()
        return gradients(model)

    plain = run(make_gpt(dropout=0.1))
    torch.manual_seed(0)
    model = make_gpt(dropout=0.1)
    context = framed(model, rule, backend_name)
    torch.manual_seed(0)
    make_gpt(dropout=0.1)  # Leaves the random state where the plain run had it.
    with context as inside:
        assert same_gradients(plain, run(inside))
    assert context.stats()["engine"]["live_storages"] == 0


def test_t25_the_optimizer_inside_backward(rule: Any, backend_name: str) -> None:
    def run(model: nn.Module) -> list[torch.Tensor]:
        optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

        def apply(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            optimizers[parameter].zero_grad()  # type: ignore[index]

        handles = [p.register_post_accumulate_grad_hook(apply) for p in model.parameters()]
        for step in range(3):
            loss_of(model(batch(step)[0]), batch(step)[1]).backward()
        for handle in handles:
            handle.remove()
        return [p.detach().clone() for p in model.parameters()]

    plain = run(make_gpt(tied=False))
    with framed(make_gpt(tied=False), rule, backend_name) as inside:
        assert same_gradients(plain, run(inside))


class SharedAndSkipped(GPT):
    """The first layer runs twice; the last is left out at random."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        x = self.blocks[0](self.blocks[0](x))
        x = self.blocks[1](x)
        if random.random() < 0.5:
            x = self.blocks[2](x)
        return self.head(self.norm(x))


def test_t26_a_block_used_twice_and_one_skipped_at_random(rule: Any, backend_name: str) -> None:
    def make() -> SharedAndSkipped:
        torch.manual_seed(0)
        random.seed(11)
        return SharedAndSkipped(dropout=0.1).to(DEVICE)

    plain = train(make(), 8)
    model = make()
    context = framed(model, rule, backend_name)
    random.seed(11)
    with context as inside:
        assert_same(plain, train(inside, 8))
    assert context.stats()["engine"]["live_storages"] == 0
