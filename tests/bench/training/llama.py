"""transformers' Llama with LoRA adapters of peft, and the loss without all logits."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import hyperframes as hf

from .workload import Around

SHAPE_8B: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 1 << 20, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
}  # fmt: skip
SHAPE_TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 4096,
}  # fmt: skip


class Trunk(nn.Module):
    """Ids in, hidden states out: the output layer belongs to the loss."""

    def __init__(self, causal_lm: nn.Module) -> None:
        super().__init__()
        self.causal_lm = causal_lm

    @property
    def llama(self) -> Any:
        """LlamaForCausalLM, whatever peft put around it."""
        inner: Any = self.causal_lm
        return inner.base_model.model if hasattr(inner, "peft_config") else inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.llama.model(input_ids=ids, use_cache=False).last_hidden_state
        return hidden


def make_llama(
    shape: dict[str, Any], device: torch.device, dtype: torch.dtype, *, lora: bool
) -> Trunk:
    """Random weights, made on the device. With LoRA only the adapters of the attention's
    projections train (r = 16)."""
    # Neither is on every machine.
    transformers: Any = importlib.import_module("transformers")
    peft: Any = importlib.import_module("peft")
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model: Any = transformers.LlamaForCausalLM._from_config(
                transformers.LlamaConfig(**shape, tie_word_embeddings=False),
                attn_implementation="sdpa",
            )
            if lora:
                config = peft.LoraConfig(
                    r=16, lora_alpha=32, lora_dropout=0.0,
                    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                )  # fmt: skip
                model = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    finally:
        torch.set_default_dtype(before)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # Zeros would make half of all gradients zero, and prove little.
            nn.init.normal_(parameter, std=0.02)
    return Trunk(model).train()


class LlamaTuning:
    """A batch of random ids; the label of each token is the next one."""

    def __init__(
        self, trunk: Trunk, device: torch.device, vocabulary: int, *, chunk: int | None = None
    ) -> None:
        self.model = trunk
        self._device, self._vocabulary, self._chunk = device, vocabulary, chunk
        self.length = self.tokens = 0

    def set_length(self, length: int, batch: int = 1) -> None:
        """New ids."""
        self.length, self.tokens = length, batch * length
        generator = torch.Generator(self._device).manual_seed(1)
        shape = (batch, length)
        self._ids = torch.randint(
            self._vocabulary, shape, device=self._device, generator=generator
        )  # fmt: skip

    def loss_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """With a chunk of logits alive, in every mode."""
        weight = self.model.llama.lm_head.weight
        return hf.chunked_cross_entropy(hidden, weight, self._ids, chunk=self._chunk, shift=True)

    def loss(self) -> torch.Tensor:
        return self.loss_of(self.model(self._ids))

    def profile(self, optimizer: torch.optim.Optimizer | None = None) -> hf.Profile:
        return hf.profile(self.model, self._ids, loss_fn=self.loss_of, optimizer=optimizer)

    def blocks(self) -> list[nn.Module]:
        return list(self.model.llama.model.layers)

    @contextlib.contextmanager
    def checkpointing(self, **options: Any) -> Iterator[None]:
        """transformers' own gradient checkpointing."""
        llama = self.model.llama
        llama.gradient_checkpointing_enable({"use_reentrant": False, **options})
        try:
            yield
        finally:
            llama.gradient_checkpointing_disable()

    def around(self, call: Around) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError("layers of transformers are called with more than one tensor")
