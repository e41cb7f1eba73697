"""Cases T5 and T14 to T18: loops around the model."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hyperframes as hf
from cases.backends import RuleOnRealEngine
from cases.fake_engine import FakeBackend
from cases.framing import framed, mixed, peer, profiled
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
from hyperframes._shared import HELD

# ---- T5 ----


def test_t5_forward_on_one_thread_backward_on_another(rule: Any, backend_name: str) -> None:
    plain = make_gpt()
    loss_of(plain(batch(0)[0]), batch(0)[1]).backward()
    model = make_gpt()
    context = framed(model, rule, backend_name)
    with context as inside:
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert same_gradients(gradients(plain), gradients(model))
    assert context.stats()["engine"]["live_storages"] == 0


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU (HYPERFRAMES_TEST_DEVICE=cuda)")
def test_t5_a_step_under_another_stream(rule: Any) -> None:
    plain = train(make_gpt(dropout=0.1))
    model = make_gpt(dropout=0.1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), framed(model, rule, "chaotic") as inside:
        seen = train(inside)
    torch.cuda.synchronize()
    assert_same(plain, seen)


class TwoStreams(GPT):
    """Its middle layer computes on a stream of its own, as a pipeline's overlapped branch does."""

    side: torch.cuda.Stream

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        x = self.blocks[0](x, mask=self.mask)
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            x = self.blocks[1](x, mask=self.mask)
        main.wait_stream(self.side)
        return self.head(self.norm(self.blocks[2](x, mask=self.mask)))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU (HYPERFRAMES_TEST_DEVICE=cuda)")
def test_t5_a_block_on_a_stream_of_its_own(rule: Any) -> None:
    def make() -> TwoStreams:
        torch.manual_seed(0)
        model = TwoStreams().to(DEVICE)
        model.side = torch.cuda.Stream()
        return model

    plain = train(make(), 6)
    model = make()
    with framed(model, rule, "chaotic") as inside:
        seen = train(inside, 6)
    torch.cuda.synchronize()
    assert_same(plain, seen)


# ---- T14, T15 ----


def test_t14_lengths_that_change_every_step(rule: Any, backend_name: str) -> None:
    lengths = [64, 48, 40, 33, 57, 21, 60, 52, 64, 48, 19, 64, 40]
    plain = train(make_gpt(), len(lengths), lengths=lambda step: lengths[step])
    context = framed(make_gpt(), rule, backend_name)
    with context as inside:
        assert_same(plain, train(inside, len(lengths), lengths=lambda step: lengths[step]))
    assert context.stats()["engine"]["live_storages"] == 0


def test_t14_a_shape_seen_before_is_planned_exactly() -> None:
    model = make_gpt()
    backend = FakeBackend(peer)
    context = hf.hyperframes(
        model, profile=profiled(model), activation_budget="1GiB", _backend=backend
    )
    with context as inside:
        train(inside, 6, lengths=lambda step: 40)
        unplanned = context.stats()["unplanned_storages"]
        train(inside, 6, lengths=lambda step: 40)
        assert context.stats()["unplanned_storages"] == unplanned
    assert len(backend.problems) == 3  # Profiled shape, scaled, learned.
    assert backend.engine.puts[1] > 200


def test_t14_many_new_shapes_bring_the_advice() -> None:
    with framed(make_gpt(length=64), peer) as inside, pytest.warns(UserWarning, match="Pad inputs"):
        train(inside, 20, lengths=lambda step: 20 + step)


def test_t15_evaluation_between_steps(rule: Any, backend_name: str) -> None:
    def evaluate(model: nn.Module) -> Callable[[int], None]:
        def run(step: int) -> None:
            model.eval()
            with torch.no_grad():
                model(batch(50 + step)[0])
            with torch.inference_mode():
                model(batch(60 + step)[0])
            model.train()

        return run

    model = make_gpt(dropout=0.1)
    plain = train(model, each_step=evaluate(model))
    model = make_gpt(dropout=0.1)
    with framed(model, rule, backend_name) as inside:
        assert_same(plain, train(inside, each_step=evaluate(model)))


class InterruptedForwardError(RuntimeError):
    pass


@pytest.mark.parametrize("at", [0, 2], ids=["first", "last"])
def test_t15_an_exception_in_forward_leaves_the_next_step_right(
    at: int, rule: Any, backend_name: str
) -> None:
    plain = train(make_gpt())
    model = make_gpt()
    context = framed(model, rule, backend_name)
    fail = [True]

    def raising(module: nn.Module, args: Any, output: Any) -> None:
        if fail[0]:
            raise InterruptedForwardError

    handle = model.blocks[at].up.register_forward_hook(raising)  # type: ignore[union-attr]
    with context as inside:
        with pytest.raises(InterruptedForwardError):
            inside(batch(9)[0])
        fail[0] = False
        gc.collect()
        assert_same(plain, train(inside))
    handle.remove()
    assert context.stats()["engine"]["live_storages"] == 0


# ---- T16, T17, T18 ----


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, 4, bias=False)
        self.b = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x))


def lora_gpt() -> GPT:
    model = make_gpt(tied=False)
    model.requires_grad_(False)
    torch.manual_seed(1)
    for block in model.blocks:
        block.qkv = Lora(block.qkv)  # type: ignore[arg-type]
        block.up = Lora(block.up)  # type: ignore[arg-type]
    return model.to(DEVICE)


def test_t16_frozen_base_with_lora(rule: Any, backend_name: str) -> None:
    plain = train(lora_gpt())
    model = lora_gpt()
    with hf.ActivationMeter(model) as meter:
        train(model, 1)
    before = meter.peak_bytes
    model = lora_gpt()
    context = framed(model, rule, backend_name)
    with context as inside:
        assert_same(plain, train(inside))
        # The saving is measured, with the ruler of the plain run.
        assert 0 < context.meter.step_peak < before


def test_t17_two_hundred_steps_stay_flat() -> None:
    model = make_gpt(layers=2, hidden=32)
    backend = RuleOnRealEngine(mixed, verify=False)
    held: list[int] = []
    objects: list[int] = []
    with framed(model, mixed, _with=backend) as inside:
        for step in range(200):
            loss_of(inside(batch(step)[0]), batch(step)[1]).backward()
            stats = hf.stats(inside)["engine"]
            held.append(int(stats["live_storages"]) + int(stats["stash_bytes"]))
            if step % 50 == 49:
                gc.collect()
                objects.append(len(gc.get_objects()))
    assert len(set(held[3:])) == 1
    assert objects[-1] - objects[0] < 100


HOARDED = 2 * 64 * 4 * 64 * 4  # Bytes of one block's wide activation.


def hoard(model: GPT) -> list[torch.Tensor]:
    """Keeps what the first block's wide layer puts out, as code that logs activations does."""
    kept: list[torch.Tensor] = []
    model.blocks[0].up.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, output: kept.append(output)
    )
    return kept


def test_t18_bytes_kept_alive_by_others_are_reported() -> None:
    model = make_gpt()
    context = framed(model, peer)
    hoard(model)  # After the profile, so no plan knows of it.
    with context as inside:
        loss_of(inside(batch(0)[0]), batch(0)[1]).backward()
        assert context.stats()["held_elsewhere"] == {"blocks.0": HOARDED}


def test_t18_bytes_known_to_be_kept_alive_stay_and_the_profile_says_why() -> None:
    model = make_gpt()
    kept = hoard(model)
    found = profiled(model)
    stays = [s for s in found.block("blocks.0").storages if s.unmovable_reason == HELD]
    assert HOARDED in [storage.nbytes for storage in stays]
    kept.clear()
    with framed(model, peer) as inside:
        loss_of(inside(batch(0)[0]), batch(0)[1]).backward()
        assert hf.stats(inside)["held_elsewhere"] == {}
