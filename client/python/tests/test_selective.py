"""SELECTIVE: expensive operators run once, the rest again; gradients are those of the plain run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hyperframes as hf
from cases.backends import BACKENDS
from cases.small_gpt import assert_same, batch, loss_of, make_gpt, train
from hyperframes import _measure_operators


@pytest.fixture
def every_operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an operator takes does not matter: each whose output may be saved is a candidate."""
    monkeypatch.setattr(_measure_operators, "CHEAP_PASSES", 0.0)
    monkeypatch.setattr(_measure_operators, "_MOST_CANDIDATES", 10_000)
    yield


def gpt_profile(model: Any, **options: Any) -> hf.Profile:
    ids, targets = batch(0)
    return hf.profile(model, ids, loss_fn=lambda out: loss_of(out, targets), **options)


TIERS = ["keep", "peer", "host", ""]


@pytest.mark.usefixtures("every_operator")
@pytest.mark.parametrize("backend_name", ["unkind", "native", "chaotic"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["plain", "dropout"])
@pytest.mark.parametrize("tier", TIERS, ids=["keep", "peer", "host", "mixed"])
def test_every_tier_gives_the_bits_of_the_plain_run(
    tier: str, dropout: float, autocast: torch.dtype | None, backend_name: str
) -> None:
    plain = train(make_gpt(dropout=dropout), autocast=autocast)
    model = make_gpt(dropout=dropout)
    profile = gpt_profile(model, dtype=autocast)
    assert len(profile.block("blocks.1").selective) > 8
    backend = BACKENDS[backend_name](lambda block, storage: f"selective:{tier}")
    context = hf.hyperframes(model, profile=profile, _backend=backend, activation_budget="1GiB")
    with context as inside:
        assert_same(plain, train(inside, autocast=autocast))
    stats = context.stats()
    assert stats["selective_blocks"] >= 3 * 3
    assert stats["selective_served"] > 3 * 3 * 8
    assert not any(stats[f"selective_{why}"] for why in ("stale", "diverged", "unlike_profile"))
    assert stats["unplanned_storages"] == 0
    assert stats["engine"]["live_storages"] == 0
