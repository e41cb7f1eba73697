"""The phases of a block's backward, as the profile measures them."""

from __future__ import annotations

import torch
from torch import nn

import hyperframes as hf
from cases.small_gpt import batch, loss_of, make_gpt

ROWS, WIDTH = 64, 128
BYTES = ROWS * WIDTH * 4


class Waves(nn.Module):
    """Saves its input, then sin, exp of it: read in the opposite order."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = (x * self.scale).exp()  # Saves its result.
        second = first.tanh()  # Saves its result.
        return second.sigmoid() * 2.0  # Saves sigmoid's result.


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Waves() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_phases_follow_the_order_of_backward_and_what_it_gives_back() -> None:
    profile = hf.profile(Stack(), torch.randn(ROWS, WIDTH))
    block = profile.block("blocks.1")
    own = [s.ordinal for s in block.storages if not s.is_input and s.nbytes == BYTES]
    reads = [phase.reads for phase in block.phases]
    assert reads[0] == -1
    assert [ordinal for ordinal in reads if ordinal in own] == own[::-1]
    in_use = {phase.reads: phase.in_use_bytes for phase in block.phases}
    # Each is given back once its node has run, before the next one is read.
    assert all(in_use[ordinal] <= BYTES + 64 for ordinal in own)
    assert all(phase.working_bytes >= phase.in_use_bytes for phase in block.phases)


def test_phases_name_every_storage_once_and_never_more_than_there_is() -> None:
    ids, targets = batch(0, 64)
    model = make_gpt(layers=2, hidden=64, length=64)
    profile = hf.profile(model, ids, loss_fn=lambda out: loss_of(out, targets))
    for block in profile.blocks:
        own = {s.ordinal: s.nbytes for s in block.storages if not s.is_input}
        reads = [phase.reads for phase in block.phases if phase.reads != -1]
        assert len(set(reads)) == len(reads)
        assert set(reads) <= set(own)
        assert all(phase.in_use_bytes <= sum(own.values()) for phase in block.phases)
    assert profile.block("blocks.1").phases


def test_phases_survive_the_json_and_grow_with_the_shape() -> None:
    profile = hf.profile(Stack(), torch.randn(ROWS, WIDTH))
    assert hf.Profile.from_json(profile.to_json()).blocks == profile.blocks
    twice = profile.scaled((((2 * ROWS, WIDTH), "float32"),))
    for small, large in zip(profile.blocks, twice.blocks, strict=True):
        for before, after in zip(small.phases, large.phases, strict=True):
            assert after.reads == before.reads
            assert after.in_use_bytes == 2 * before.in_use_bytes
