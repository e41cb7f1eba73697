"""Lightning with HyperFrames: a context around `trainer.fit()`, no callback and no adapter.

    python examples/lightning_gpt.py --steps 4 --activation-budget 1.4MiB

The context is opened on the network inside the LightningModule, not on the LightningModule itself:
Lightning calls `training_step`, and never the module's own forward. Trainer picks the device;
gradient accumulation, clipping and the validation in between stay Trainer's business.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader

import hyperframes as hf
from small_run import LENGTH, TextDataset, any_loss, make_gpt, parser_of_flags, save_report, start
from train_gpt import loss_of


class LitGPT(lightning.LightningModule):  # type: ignore[misc]
    """An ordinary LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_gpt()
        self.losses: list[float] = []

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        targets = batch["labels"][:, 1:].contiguous()
        loss = loss_of(self.network(batch["input_ids"][:, :-1]), targets)
        self.losses.append(loss.item())
        return loss

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.network.parameters(), lr=1e-3)


def main() -> None:
    args = start(parser_of_flags(__doc__))
    module = LitGPT()
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = DataLoader(TextDataset(64, LENGTH), batch_size=2, shuffle=True)
    validation = DataLoader(TextDataset(4, LENGTH, start=2**20), batch_size=2)
    with hf.hyperframes(
        module.network, loss_fn=any_loss, activation_budget=args.activation_budget
    ) as network:
        trainer.fit(module, train, validation)
        frames = hf.stats(network)

    save_report(args.report, module.losses, module, frames, rank=trainer.global_rank)


if __name__ == "__main__":
    main()
