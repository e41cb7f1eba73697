"""Calls in the style of transformers' models: keywords, both kinds of arguments, a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hyperframes as hf
from cases.backends import default_backend
from cases.framing import mixed, recompute
from cases.small_gpt import DEVICE, GPT, assert_same, batch, loss_of, train


class Cache:
    """Each layer appends to it, so a layer that runs twice finds what it wrote."""

    def __init__(self) -> None:
        self.seen: dict[int, torch.Tensor] = {}

    def update(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        known = self.seen.get(layer)
        self.seen[layer] = x if known is None else torch.cat([known, x], dim=1)
        return self.seen[layer]

    def get_seq_length(self) -> int:
        return self.seen[0].shape[1] if self.seen else 0


class CachedBlock(nn.Module):
    def __init__(self, block: nn.Module, layer: int) -> None:
        super().__init__()
        self.block, self.layer = block, layer

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, cache: Cache | None = None) -> Any:
        if cache is not None:
            x = cache.update(x, self.layer)
        return self.block(x, mask=mask)


class CachingGPT(GPT):
    """Its forward takes names beside the ids, and has a cache unless told otherwise."""

    def forward(
        self, ids: torch.Tensor, scale: float = 1.0, use_cache: bool = True
    ) -> torch.Tensor:
        cache = Cache() if use_cache else None
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, mask=self.mask, cache=cache)
        return self.head(self.norm(x)) * scale


class Call(nn.Module):
    """Calls the model in another way."""

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.model, self.args, self.kwargs = model, args, kwargs

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids, *self.args, **self.kwargs)


def caching_gpt() -> CachingGPT:
    torch.manual_seed(0)
    model = CachingGPT()
    model.blocks = nn.ModuleList(CachedBlock(b, i) for i, b in enumerate(model.blocks))
    return model.to(DEVICE)


def test_a_block_that_writes_to_a_cache_is_measured_once_and_never_recomputed() -> None:
    plain = train(caching_gpt())
    model = caching_gpt()
    with pytest.warns(UserWarning, match=r"blocks\.0 is given a Cache.*use_cache=False") as told:
        profile = hf.profile(model, batch(0)[0])
    assert len(told) == 1
    assert profile.block("blocks.0").keep_reason == "writes to its Cache"
    context = hf.hyperframes(
        model, profile=profile, activation_budget="1GiB", _backend=default_backend(recompute)
    )
    with context as inside:
        assert_same(plain, train(inside))
    assert not [name for name in context.stats()["recompute_s_by_block"] if "blocks" in name]


def test_a_cache_that_the_profile_did_not_have_keeps_the_block() -> None:
    plain = train(caching_gpt())
    model = caching_gpt()
    profile = hf.profile(model, {"ids": batch(0)[0], "use_cache": False})
    assert profile.block("blocks.0").keep_reason == ""
    with hf.hyperframes(
        model, profile=profile, activation_budget="1GiB", _backend=default_backend(recompute)
    ) as inside:
        assert_same(plain, train(inside))


def test_positional_and_keyword_arguments_together_need_no_profile() -> None:
    plain = train(Call(caching_gpt(), 0.5, use_cache=False))
    model = caching_gpt()
    context = hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(mixed))
    with context:
        assert_same(plain, train(Call(model, 0.5, use_cache=False)))
    assert context.stats()["recomputed_blocks"] > 0


def test_positional_arguments_without_names_beside_keywords_are_refused_by_name() -> None:
    class Anything(GPT):
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return super().forward(args[0])

    model = Anything().to(DEVICE)
    context = hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(mixed))
    with context, pytest.raises(hf.FailedPrecondition, match="Anything is called with 1 pos"):
        loss_of(model(batch(0)[0], labels=None), batch(0)[1])
