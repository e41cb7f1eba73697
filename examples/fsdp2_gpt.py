"""FSDP2 with HyperFrames: shard the blocks and the root as always, then open the context.

    torchrun --nproc-per-node 2 examples/fsdp2_gpt.py --activation-budget 2MiB [--compile]

Runs over NCCL on GPUs where every rank has one, else over gloo on the processor. FSDP frees and
gathers the weights of each block inside a step; HyperFrames never moves weights, gathered or not,
and decides on each rank where that rank's activations wait. A recomputed block finds its weights
gathered, for its backward needs them anyway.

`--compile` compiles each block (never the whole model: then hooks would see nothing of its inside).
Compiled blocks are moved in whole storages and never recomputed.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hyperframes as hf
from small_run import LENGTH, make_gpt, parser_of_flags, save_report, start
from stdlib_text import ByteBatches
from train_gpt import loss_of


def pick_device() -> torch.device:
    """This rank's GPU where there is one for each rank of the node, else the processor."""
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def make_sharded(device: torch.device, *, compiled: bool) -> nn.Module:
    """A GPT whose blocks are gathered one at a time."""
    model = make_gpt().to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    parser = parser_of_flags(__doc__)
    parser.add_argument("--compile", action="store_true", help="compile each block")
    args = start(parser)
    device = pick_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = make_sharded(device, compiled=args.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = ByteBatches(2, LENGTH, rank=rank, world=world, seed=1)
    torch.manual_seed(1 + rank)  # Each rank drops out other activations.

    ids, targets = (tensor.to(device) for tensor in batches.batch(0))
    profile = hf.profile(
        model, ids, loss_fn=lambda logits: loss_of(logits, targets), optimizer=optimizer
    )
    losses, graphs = [], []
    with hf.hyperframes(model, profile=profile, activation_budget=args.activation_budget) as model:
        for step in range(args.steps):
            ids, targets = (tensor.to(device) for tensor in batches.batch(step))
            loss = loss_of(model(ids), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        frames = {**hf.stats(model), "compiled_graphs": graphs}

    save_report(args.report, losses, model, frames, rank=rank)
    # Gloo's threads may still hold tensors of the last gather. Letting go of one that Python knows
    # too while Python ends would abort the process: they do it while this waits.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
