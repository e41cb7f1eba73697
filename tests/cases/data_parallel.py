"""One rank of a small model under DistributedDataParallel, with and without frames."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

import hyperframes as hf
from cases.small_gpt import batch, gradients, loss_of
from process_groups import leave_group


def train_rank(gpt: Any, share: float, **options: Any) -> tuple[Any, hf.Profile | None]:
    """Three steps, each of which prints "loss", the rank, the loss and a sum over each gradient.

    Args:
        share: of the activations that HyperFrames may leave on the GPU; 0: without HyperFrames.
        options: of hf.hyperframes.

    Returns:
        The context, left, and the profile; None without HyperFrames.
    """
    rank = int(os.environ["RANK"])
    context, profile = None, None
    dist.init_process_group("gloo")
    model: Any = torch.nn.parallel.DistributedDataParallel(gpt)
    if share:
        ids, targets = batch(0)
        profile = hf.profile(model, ids, loss_fn=lambda out: loss_of(out, targets))
        budget = int(profile.activation_bytes * share)
        context = hf.hyperframes(model, profile=profile, activation_budget=budget, **options)
        model = context.__enter__()
    for step in range(3):
        ids, targets = batch(2 * step + rank)
        torch.manual_seed(step)
        loss = loss_of(model(ids), targets)
        loss.backward()
        sums = [float(grad.double().sum()).hex() for grad in gradients(gpt) if grad is not None]
        print("loss", rank, float(loss).hex(), *sums)
        gpt.zero_grad()
    if context is not None:
        context.__exit__(None, None, None)
        peak = context.stats()["activation_peak"]
        assert 0 < peak <= budget, f"the peak is {peak}, the budget {budget}"
    leave_group()
    return context, profile
