"""Case T22: compiled blocks on several ranks: one that communicates must not run again alone."""

from __future__ import annotations

import pytest

from cases.small_gpt import DEVICE
from process_groups import run_two_ranks

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="its devices are simulated")

DATA_PARALLEL = """
    import os, sys
    import torch, torch.distributed as dist
    import hyperframes as hf
    from cases.small_gpt import *
    from cases.test_recomputed_compiled import Watching, compiled
    from process_groups import leave_group

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    watching = Watching()
    gpt = compiled(watching, dropout=0.1)
    model = torch.nn.parallel.DistributedDataParallel(gpt)
    ids, targets = batch(0)
    if sys.argv[1] == "framed":
        profile = hf.profile(model, ids, loss_fn=lambda o: loss_of(o, targets))
        assert not any(b.keep_reason for b in profile.blocks if "blocks" in b.name), profile
        budget = profile.activation_bytes // 2
        context = hf.hyperframes(
            model, profile=profile, activation_budget=budget, forbid=["host", "peer", "selective"]
        )
        model = context.__enter__()
    for step in range(3):
        ids, targets = batch(2 * step + rank)
        torch.manual_seed(step)
        loss = loss_of(model(ids), targets)
        loss.backward()
        print("loss", rank, loss.item().hex(), sum(g.double().sum() for g in gradients(gpt)).item())
        gpt.zero_grad()
    if sys.argv[1] == "framed":
        context.__exit__(None, None, None)
        stats = context.stats()
        assert 0 < stats["activation_peak"] <= budget, stats
        again = [name for name in stats["recompute_s_by_block"] if "blocks" in name]
        policies = [p for n, p in context.plan.policies.items() if "blocks" in n]
        assert again and again == sorted(again, reverse=True), again
        print("policies", policies)
    assert watching.graphs == 1
    leave_group()
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
    plain, _ = run_two_ranks(DATA_PARALLEL, "plain")
    assert len(plain) == 6
    seen, _ = run_two_ranks(
        DATA_PARALLEL, "framed", environment={"HYPERFRAMES_HOST_DEVICES": "2 x 64MiB"}
    )
    assert [line for line in seen if line.startswith("loss")] == plain
    policies = [line for line in seen if line.startswith("policies")]
    assert len(policies) == 2
    assert policies[0] == policies[1]


def test_t22_a_compiled_block_that_communicates_is_kept() -> None:
    lines, _ = run_two_ranks(COMMUNICATING)
    why = "compiled, and it communicates with other ranks"
    assert lines == sorted([f"0 True {why}", "1 True ", f"2 True {why}"] * 2)
