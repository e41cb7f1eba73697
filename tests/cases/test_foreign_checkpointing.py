"""Cases T11 and T12: other means against the same memory, and recomputation under dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import hyperframes as hf
from cases.backends import BACKENDS, default_backend
from cases.framing import peer, profiled, recompute
from cases.small_gpt import DEVICE, GPT, assert_same, batch, make_gpt, train


class SelfCheckpointing(GPT):
    """As transformers models do it: a flag, and the call inside."""

    def __init__(self, reentrant: bool, whole: bool) -> None:
        super().__init__()
        self.reentrant, self.whole = reentrant, whole

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for index, block in enumerate(self.blocks):
            if self.whole or index == 1:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            else:
                x = block(x)
        return self.head(self.norm(x))


def self_checkpointing(reentrant: bool, whole: bool) -> SelfCheckpointing:
    torch.manual_seed(0)
    return SelfCheckpointing(reentrant, whole).to(DEVICE)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "one"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "nonreentrant"])
def test_t11_checkpointing_is_refused_by_name(reentrant: bool, whole: bool) -> None:
    model = self_checkpointing(reentrant, whole)
    with pytest.raises(hf.FailedPrecondition, match=r"gradient_checkpointing_disable\(\)"):
        profiled(model)
    plain = make_gpt()
    with (
        hf.hyperframes(model, profile=profiled(plain), _backend=default_backend(peer)) as inside,
        pytest.raises(hf.FailedPrecondition, match="allow_checkpointing=True"),
    ):
        inside(batch(0)[0])


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "one"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "nonreentrant"])
def test_t11_allowed_checkpointing_is_right(reentrant: bool, whole: bool, rule: Any) -> None:
    plain = train(self_checkpointing(reentrant, whole))
    model = self_checkpointing(reentrant, whole)
    profile = profiled(model, allow_checkpointing=True)
    with hf.hyperframes(
        model, profile=profile, _backend=default_backend(rule), allow_checkpointing=True
    ) as inside:
        assert_same(plain, train(inside))


def test_t11_a_flag_on_a_submodule_is_refused_by_name() -> None:
    model = make_gpt()
    model.blocks[1].gradient_checkpointing = True  # type: ignore[assignment]
    with pytest.raises(hf.FailedPrecondition, match=r"blocks\.1 has gradient_checkpointing=True"):
        hf.hyperframes(model, _backend=default_backend(peer))


def test_t11_a_nested_offloader_is_refused_by_name() -> None:
    model = make_gpt()
    inner = model.blocks[0].forward

    def offloading(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return inner(*args, **kwargs)

    profile = profiled(model)
    model.blocks[0].forward = offloading
    with (
        hf.hyperframes(model, profile=profile, _backend=default_backend(peer)) as inside,
        pytest.raises(hf.FailedPrecondition, match=r"save_on_cpu was entered in blocks\.0"),
    ):
        inside(batch(0)[0])
    with (
        torch.autograd.graph.save_on_cpu(),
        pytest.raises(hf.FailedPrecondition, match="already installed"),
        hf.hyperframes(make_gpt(), profile=profile, _backend=default_backend(peer)),
    ):
        pass


def test_t12_dropout_and_autocast_in_a_recomputed_block(backend_name: str) -> None:
    plain = train(make_gpt(dropout=0.3), autocast=torch.bfloat16)
    model = make_gpt(dropout=0.3)
    profile = profiled(model, dtype=torch.bfloat16)
    backend = BACKENDS[backend_name](recompute)
    context = hf.hyperframes(model, profile=profile, _backend=backend)
    with context as inside:
        assert_same(plain, train(inside, autocast=torch.bfloat16))
    assert context.stats()["recomputed_blocks"] > 9
