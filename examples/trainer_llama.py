"""transformers' Trainer with HyperFrames: a context around `trainer.train()`, and nothing else.

    python examples/trainer_llama.py --steps 4 --activation-budget 2MiB

The first training batch is the profile's sample: Trainer calls its model with keyword arguments
(`input_ids=..., labels=...`), and the loss is computed inside the model. Gradient accumulation and
evaluation in between are Trainer's own business; in evaluation nothing is saved for a backward, so
HyperFrames stays out of it.

Do not set `gradient_checkpointing=True` in TrainingArguments: HyperFrames refuses it by name, for
it decides itself what is recomputed.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # The model is made here, not loaded.

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import hyperframes as hf
from small_run import LENGTH, TextDataset, parser_of_flags, save_report, start
from train_gpt import VOCABULARY


def make_model(attention: str = "sdpa") -> Any:
    """A Llama of random weights; everything but its size is as in the large ones."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            attn_implementation=attention,
        )
    )


def main() -> None:
    args = start(parser_of_flags(__doc__))
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=args.steps,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                learning_rate=1e-3,
                eval_strategy="steps",
                eval_steps=2,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=1,
            ),
            train_dataset=TextDataset(64, LENGTH),
            eval_dataset=TextDataset(8, LENGTH, start=2**20),
        )
        with hf.hyperframes(model, activation_budget=args.activation_budget):
            trainer.train()
            frames = hf.stats(model)

    told = [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history]
    save_report(args.report, [loss for loss in told if loss is not None], model, frames)


if __name__ == "__main__":
    main()
