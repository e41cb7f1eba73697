"""Losses and gradients are those of the run without HyperFrames, bit for bit, in every tier."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import hyperframes as hf
from cases.fake_engine import FakeBackend, Rule
from cases.small_gpt import assert_same, batch, loss_of, make_gpt, train


def always(tier: str) -> Rule:
    return lambda block, storage: tier


def mixed(block: str, storage: dict[str, Any]) -> str:
    """A different tier for every storage, and every second layer recomputed."""
    if block.endswith(("blocks.1", "norm")):
        return "recompute"
    return ("keep", "peer", "host")[storage["ordinal"] % 3]


RULES: dict[str, Rule] = {
    "keep": always("keep"),
    "peer": always("peer"),
    "host": always("host"),
    "recompute": always("recompute"),
    "mixed": mixed,
}


def run_with(rule: Rule, options: dict[str, Any], **training: Any) -> tuple[Any, FakeBackend, Any]:
    model = make_gpt(**options)
    ids, targets = batch(0)
    profile = hf.profile(
        model, ids, loss_fn=lambda out: loss_of(out, targets), dtype=training.get("autocast")
    )
    backend = FakeBackend(rule)
    context = hf.hyperframes(model, profile=profile, _backend=backend)
    with context as inside:
        seen = train(inside, **training)
    return seen, backend, context.stats()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["plain", "dropout"])
@pytest.mark.parametrize("rule", list(RULES))
def test_every_tier_and_policy_gives_the_bits_of_the_plain_run(
    rule: str, dropout: float, autocast: torch.dtype | None
) -> None:
    options = {"dropout": dropout}
    plain = train(make_gpt(**options), autocast=autocast)
    seen, backend, stats = run_with(RULES[rule], options, autocast=autocast)
    assert_same(plain, seen)
    assert stats["unplanned_storages"] == 0
    assert backend.engine.stats()["live_storages"] == 0
    if rule in ("peer", "host"):
        assert sum(backend.engine.puts) > 60
    if rule == "recompute":
        assert stats["recomputed_blocks"] == 3 * 7  # Embeddings, layers, norm and head


def test_checkpointing_gives_the_same_bits_too() -> None:
    plain = train(make_gpt(dropout=0.1))
    model = make_gpt(dropout=0.1)
    model.checkpointing = True
    assert_same(plain, train(model))


def test_untied_and_eager_models_agree_without_a_profile() -> None:
    plain = train(make_gpt(tied=False), steps=4)
    model = make_gpt(tied=False)
    backend = FakeBackend(always("peer"))
    context = hf.hyperframes(model, _backend=backend)
    with context as inside:
        seen = train(inside, steps=4)
    assert_same(plain, seen)
    # The first step's loss was not in the profile: kept, counted, and planned from then on.
    assert 0 < context.stats()["unplanned_storages"] < 8
    assert any("loss" in (b["name"] for b in p["blocks"]) for p in backend.problems)


def test_mode_off_leaves_the_model_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_MODE", "off")
    plain = train(make_gpt())
    model = make_gpt()
    with hf.hyperframes(model, activation_budget="1B", _backend=FakeBackend(mixed)) as inside:
        assert inside is model
        assert not model._forward_hooks
        assert "forward" not in model.blocks[0].__dict__
        assert_same(plain, train(inside))


def test_leaving_the_context_restores_every_hook() -> None:
    model = make_gpt()
    before = {k: dict(m.__dict__) for k, m in model.named_modules()}
    run = hf.hyperframes(model, _backend=FakeBackend(mixed))
    with run as inside:
        train(inside, steps=1)
    for name, module in model.named_modules():
        assert set(module.__dict__) == set(before[name])
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert_same(train(make_gpt()), train(make_gpt()))


def test_nothing_keeps_the_model_once_its_context_was_left() -> None:
    model = make_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive = weakref.ref(model), weakref.ref(optimizer)
    ids, targets = batch(0)
    context = hf.hyperframes(
        model,
        sample_input=ids,
        loss_fn=lambda out: loss_of(out, targets),
        optimizer=optimizer,
        _backend=FakeBackend(mixed),
    )
    with context as inside:
        train(inside, steps=1)
    assert hf.stats(model)["steps"] == 1
    del model, optimizer, inside
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    assert context.stats()["steps"] == 1


class Refusing(FakeBackend):
    def plan(self, *_: Any) -> Any:
        raise hf.ResourceExhausted("no plan fits")


@pytest.mark.parametrize("end", ["left", "refused", "never entered"])
def test_a_model_goes_with_its_last_name_not_when_garbage_is_collected(end: str) -> None:
    """Its weights and gradients are on a GPU, whose memory the collector does not see."""

    def use(model: torch.nn.Module) -> None:
        backend = (Refusing if end == "refused" else FakeBackend)(mixed)
        context = hf.hyperframes(model, sample_input=batch(0)[0], _backend=backend)
        if end == "refused":
            with pytest.raises(hf.ResourceExhausted), context:
                raise AssertionError("it has no plan")
        elif end == "left":
            with context as inside:
                train(inside, steps=1)

    model = make_gpt()
    alive = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        use(model)
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_a_context_that_fails_as_it_is_entered_gives_back_what_it_leased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no hooks today")

    backend, model = FakeBackend(mixed), make_gpt()
    monkeypatch.setattr("hyperframes._session.announce", fail)
    with pytest.raises(RuntimeError, match="no hooks today"):
        hf.hyperframes(model, sample_input=batch(0)[0], _backend=backend).__enter__()
    assert backend.engine.closed
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_the_engine_keeps_what_it_cannot_place_and_nothing_changes() -> None:
    plain = train(make_gpt())
    model = make_gpt()
    backend = FakeBackend(always("peer"))
    with hf.hyperframes(model, sample_input=batch(0)[0], _backend=backend) as inside:
        backend.engine.keep_everything = True
        assert_same(plain, train(inside))
