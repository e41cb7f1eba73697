"""transformers' models as users call them: keywords only, masks, caches, adapters by peft."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Trainer, TrainingArguments

import hyperframes as hf
from cases.backends import default_backend
from cases.framing import RULES, peer, recompute
from cases.small_gpt import gradients, same_gradients
from small_run import LENGTH, TextDataset
from trainer_llama import make_model


def batch(step: int, *, padded: bool = False) -> dict[str, torch.Tensor]:
    """As Trainer's collator makes them; `padded`: the second sequence is shorter."""
    data = TextDataset(2, LENGTH, start=step * 2 * LENGTH)
    values = {key: torch.stack([data[0][key], data[1][key]]) for key in data[0]}
    if padded:
        mask = torch.ones_like(values["input_ids"])
        mask[1, LENGTH // 2 :] = 0
        values["labels"][1, LENGTH // 2 :] = -100
        values["attention_mask"] = mask
    return values


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    model = make_model(**options)
    model.train()
    return model


def train(model: Any, steps: int = 3, **call: Any) -> list[Any]:
    """Losses and gradients of every step."""
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(**batch(step, padded=step % 2 == 1), **call).loss
        loss.backward()
        seen.append((loss.detach().clone(), gradients(model)))
        optimizer.step()
    return seen


def assert_same(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second)
    for (loss, grads), (other, others) in zip(first, second, strict=True):
        assert torch.equal(loss, other)
        assert same_gradients(grads, others)


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_keyword_batches_with_and_without_masks_are_bit_equal(name: str, attention: str) -> None:
    plain = train(llama(attention=attention), use_cache=False)
    model = llama(attention=attention)
    context = hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(RULES[name]))
    with context as inside:
        assert_same(plain, train(inside, use_cache=False))
    assert context.stats()["engine"]["live_storages"] == 0
    moved = sum(context.stats()["engine"]["bytes_out"].values())
    assert moved > 0
    assert (context.stats()["recomputed_blocks"] > 0) == (name != "peer")


def test_a_cache_in_training_is_right_and_its_price_is_told() -> None:
    """use_cache=True is the default of transformers' models, in training as well."""
    plain = train(llama())
    model = llama()
    context = hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(recompute))
    with context as inside, pytest.warns(UserWarning, match="use_cache=False"):
        assert_same(plain, train(inside))
    layers = [name for name in context.stats()["recompute_s_by_block"] if "layers." in name]
    assert layers == []


def test_a_cache_that_only_training_has_is_right() -> None:
    plain = train(llama())
    model = llama()
    profile = hf.profile(model, {**batch(0), "use_cache": False})
    assert profile.block("model.layers.1").keep_reason == ""
    with hf.hyperframes(
        model, profile=profile, activation_budget="1GiB", _backend=default_backend(recompute)
    ) as inside:
        assert_same(plain, train(inside))


def test_a_cache_of_the_callers_own_is_not_filled_by_a_profile() -> None:
    from transformers import DynamicCache

    model = llama()
    cache = DynamicCache(config=model.config)
    with pytest.raises(hf.FailedPrecondition, match="DynamicCache"):
        hf.profile(model, {**batch(0), "past_key_values": cache})
    assert cache.get_seq_length() == 0


# ---- Adapters (case T16) ----


def with_lora() -> nn.Module:
    base = llama()
    torch.manual_seed(3)
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    model: nn.Module = get_peft_model(base, config)
    return model.train()


@pytest.mark.parametrize("name", list(RULES))
def test_t16_gradients_of_peft_adapters_are_bit_equal(name: str) -> None:
    plain = train(with_lora(), use_cache=False)
    model = with_lora()
    frozen = copy.deepcopy({n: p for n, p in model.named_parameters() if not p.requires_grad})
    context = hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(RULES[name]))
    with context as inside:
        assert_same(plain, train(inside, use_cache=False))
    assert frozen
    for parameter_name, parameter in model.named_parameters():
        if parameter_name in frozen:
            assert parameter.grad is None
            assert torch.equal(parameter, frozen[parameter_name])
    assert any(grad is not None for _, grads in plain for grad in grads)
    assert context.stats()["engine"]["live_storages"] == 0


def test_t16_the_saving_under_peft_is_measured() -> None:
    """One ruler for all: bytes of what was saved for backward, as long as it lives."""
    model = with_lora()
    sample = {**batch(0), "use_cache": False}
    table = hf.compare(
        model,
        sample,
        loss_fn=lambda output: output.loss,
        activation_budget="2MiB",
        steps=3,
    )
    rows = {row.mode: row for row in table.rows}
    print(table)
    assert rows["hyperframes"].verdict == rows["checkpoint"].verdict == "bit-equal"
    assert rows["hyperframes"].peak_bytes <= 2 << 20
    assert rows["hyperframes"].peak_bytes < 0.6 * rows["nothing"].peak_bytes


# ---- What is refused ----


def trainer_with(model: nn.Module, folder: str, **options: Any) -> Any:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=1, per_device_train_batch_size=2, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True, **options,
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=TextDataset(4, LENGTH))


@pytest.mark.parametrize("reentrant", [False, True])
def test_trainers_own_checkpointing_is_refused_by_name(reentrant: bool) -> None:
    model = llama()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_with(
            model, folder, gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": reentrant},
        )  # fmt: skip
        with (
            hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(peer)),
            pytest.raises(hf.FailedPrecondition, match="gradient_checkpointing=False in its arg"),
        ):
            trainer.train()


def test_trainers_whole_compile_is_refused_by_name() -> None:
    torch._dynamo.reset()
    model = llama()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_with(model, folder, torch_compile=True, torch_compile_backend="eager")
        with (
            hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(peer)),
            pytest.raises(hf.FailedPrecondition, match="compile each block"),
        ):
            trainer.train()
