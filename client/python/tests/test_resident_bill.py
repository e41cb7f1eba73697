"""What weights, gradients and optimizer states take on one rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hyperframes.profile import resident_bill

RANKS = 4


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """A group in which every collective is a no-op: enough to lay shards out."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_a_sharded_model_is_billed_by_its_shard(four_ranks: None) -> None:
    model = nn.Linear(64, 128, bias=False)
    whole = resident_bill(model, torch.optim.AdamW(model.parameters()))
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.AdamW(model.parameters())
    assert resident_bill(model, optimizer) == tuple(part // RANKS for part in whole)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    steps = 4  # One fp32 count.
    _, _, states, _ = resident_bill(model, optimizer)
    assert states == whole[2] // RANKS + steps
