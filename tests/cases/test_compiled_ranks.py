"""Case T22: compiled blocks on several ranks: one that communicates must not run again alone."""

from __future__ import annotations

import pytest

from cases.small_gpt import DEVICE
from process_groups import run_two_ranks

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="its devices are simulated")

DATA_PARALLEL = """
    import sys
    from cases.data_parallel import train_rank
    from cases.test_recomputed_compiled import Watching, compiled

    watching = Watching()
    gpt = compiled(watching, dropout=0.1)
    share = float(sys.argv[1])
    context, profile = train_rank(gpt, share, forbid=["host", "peer", "selective"])
    if context is not None:
        reasons = [b.keep_reason for b in profile.blocks if "blocks" in b.name]
        assert not any(reasons), reasons
        again = [name for name in context.stats()["recompute_s_by_block"] if "blocks" in name]
        assert again and again == sorted(again, reverse=True), again
        print("policies", [p for n, p in context.plan.policies.items() if "blocks" in n])
    assert watching.graphs == 1
"""

COMMUNICATING = """
    import torch, torch.distributed as dist
    import torch.distributed._functional_collectives as collectives
    import hyperframes as hf
    from torch import nn
    from cases.test_recomputed_compiled import Watching
    from process_groups import leave_group

    dist.init_process_group("gloo")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            total = collectives.all_reduce(x.detach(), "sum", dist.group.WORLD)
            return x + self.down(torch.sigmoid(self.up(x))) * total.mean()

    class Quiet(Block):
        def forward(self, x):
            return x + self.down(torch.sigmoid(self.up(x)))

    model = nn.Sequential(Block(), Quiet(), Block())
    for block in model:
        block.compile(backend=Watching())
    profile = hf.profile(model, torch.ones(32, 64), loss_fn=lambda out: out.sum())
    for block in profile.blocks[:3]:
        print(block.name, block.collectives, block.keep_reason)
    leave_group()
"""


def test_t22_data_parallel_ranks_run_the_same_compiled_blocks_again() -> None:
    plain, _ = run_two_ranks(DATA_PARALLEL, "0")
    assert len(plain) == 6
    seen, _ = run_two_ranks(
        DATA_PARALLEL, "0.5", environment={"HYPERFRAMES_HOST_DEVICES": "2 x 64MiB"}
    )
    assert [line for line in seen if line.startswith("loss")] == plain
    policies = [line for line in seen if line.startswith("policies")]
    assert len(policies) == 2
    assert policies[0] == policies[1]


def test_t22_a_compiled_block_that_communicates_is_kept() -> None:
    lines, _ = run_two_ranks(COMMUNICATING)
    why = "compiled, and it communicates with other ranks"
    assert lines == sorted([f"0 True {why}", "1 True ", f"2 True {why}"] * 2)
