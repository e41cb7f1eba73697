"""accelerate with HyperFrames: prepare as always, then open the context around the prepared model.

    python examples/accelerate_gpt.py --steps 4 --activation-budget 1.4MiB
    accelerate launch examples/accelerate_gpt.py --activation-budget 1.4MiB

accelerate picks the device, wraps the model for data parallel training where it was launched so,
and divides the loss by the number of micro-batches. Open the context after `prepare`: what it
returns is what is trained. With mixed precision (`--mixed-precision bf16`) the forward that
accelerate has put under autocast is the one that is profiled.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import hyperframes as hf
from small_run import LENGTH, TextDataset, any_loss, make_gpt, parser_of_flags, save_report, start
from train_gpt import loss_of


def main() -> None:
    parser = parser_of_flags(__doc__)
    parser.add_argument("--mixed-precision", choices=["no", "bf16"], default="no")
    args = start(parser)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision=args.mixed_precision)
    model: torch.nn.Module = make_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(TextDataset(4 * args.steps, LENGTH), batch_size=2, shuffle=True)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

    losses = []
    with hf.hyperframes(model, loss_fn=any_loss, activation_budget=args.activation_budget) as model:
        for batch in data:
            ids, targets = batch["input_ids"][:, :-1], batch["labels"][:, 1:]
            with accelerator.accumulate(model):
                loss = loss_of(model(ids), targets.contiguous())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        frames = hf.stats(model)

    save_report(args.report, losses, model, frames, rank=accelerator.process_index)
    accelerator.end_training()


if __name__ == "__main__":
    main()
