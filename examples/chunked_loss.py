"""A language model whose logits outweigh everything else, and the loss that never holds them all.

    python examples/chunked_loss.py

The same step three times: torch's own loss; hf.chunked_cross_entropy; the latter with HyperFrames,
which only now has something to decide. The losses differ by rounding at most, and so do gradients.
"""

from __future__ import annotations

import contextlib
import os

import torch
import torch.nn.functional as F
from torch import nn

import hyperframes as hf

LENGTH, HIDDEN, LAYERS, VOCABULARY = 512, 64, 4, 16384


class Model(nn.Module):
    """Ids to hidden states. The output layer is a parameter here, but the loss applies it."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.token(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def main() -> dict[str, tuple[float, int]]:
    """Loss and peak of activation bytes by way of running the step."""
    torch.manual_seed(1)
    os.environ.setdefault("HYPERFRAMES_HOST_DEVICES", "2 x 64MiB")
    model = Model()
    ids = torch.randint(VOCABULARY, (1, LENGTH))

    def plain_loss(hidden: torch.Tensor) -> torch.Tensor:
        logits = model.head(hidden[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def chunked_loss(hidden: torch.Tensor) -> torch.Tensor:
        return hf.chunked_cross_entropy(hidden, model.head.weight, ids, chunk=128, shift=True)

    profile = hf.profile(model, ids, loss_fn=chunked_loss)
    budget = int(0.4 * profile.activation_bytes)
    framed = hf.hyperframes(model, profile=profile, activation_budget=budget)
    found = {}
    for name, loss_fn, context in (
        ("torch's loss", plain_loss, contextlib.nullcontext(model)),
        ("chunked loss", chunked_loss, contextlib.nullcontext(model)),
        ("chunked loss, HyperFrames", chunked_loss, framed),
    ):
        with hf.ActivationMeter(model) as meter, context as inside:
            loss = loss_fn(inside(ids))
            torch.autograd.backward(loss)
            model.zero_grad()
        found[name] = (loss.item(), meter.peak_bytes)
        print(f"{name:<26} loss {loss.item():.6f}  activations {meter.peak_bytes / 2**20:6.2f} MiB")
    return found


if __name__ == "__main__":
    main()
