"""Cases T7, T22 and T24: FSDP2 around the moved blocks, eager and compiled.

A group of one rank gathers and frees weights as a larger one does; two ranks train in
`tests/ecosystem`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import hyperframes as hf
from cases.backends import BACKENDS, default_backend
from cases.fake_engine import FakeBackend
from cases.framing import mixed, peer, profiled
from cases.small_gpt import (
    DEVICE,
    GPT,
    Fingerprint,
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
    train,
)
from cases.test_compiled_blocks import WAYS, Counting
from process_groups import leave_group


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    """A process group of this process alone."""
    kind = "nccl" if DEVICE.type == "cuda" else "gloo"
    dist.init_process_group(
        kind, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    yield
    leave_group()


def by_block(model: GPT, **options: Any) -> GPT:
    """The usual way: each block, then the root."""
    mesh = init_device_mesh(DEVICE.type, (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def by_part(model: Any) -> GPT:
    """Parts of a block are gathered while it runs."""
    mesh = init_device_mesh(DEVICE.type, (1,))
    for block in model.blocks:
        for part in (block.qkv, block.up):
            fully_shard(part, mesh=mesh)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def only_blocks(model: Any) -> GPT:
    """HyperFrames reaches beyond what FSDP shards: each block is a root of its own."""
    for block in model.blocks:
        fully_shard(block, mesh=init_device_mesh(DEVICE.type, (1,)))
    return model


def kept_gathered(model: GPT) -> GPT:
    return by_block(model, reshard_after_forward=False)


def in_bfloat16(model: GPT) -> GPT:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return by_block(model, mp_policy=policy)


SHARDINGS = {f.__name__: f for f in (by_block, by_part, only_blocks, kept_gathered, in_bfloat16)}


@pytest.fixture(params=list(SHARDINGS))
def shard(request: pytest.FixtureRequest) -> Any:
    return SHARDINGS[request.param]


def whole(fingerprint: Fingerprint) -> Fingerprint:
    """Gradients of DTensors as what they stand for."""
    return [
        (loss, [getattr(g, "full_tensor", lambda g=g: g)() for g in grads])
        for loss, grads in fingerprint
    ]


def test_t24_sharded_blocks_are_bit_equal(shard: Any, rule: Any, backend_name: str) -> None:
    plain = train(shard(make_gpt(dropout=0.1)), 3)
    model = shard(make_gpt(dropout=0.1))
    context = hf.hyperframes(
        model,
        profile=profiled(model),
        activation_budget="1GiB",
        _backend=BACKENDS[backend_name](rule),
    )
    with context as inside:
        assert_same(whole(plain), whole(train(inside, 3)))
    assert context.stats()["unplanned_storages"] == 0
    assert context.stats()["engine"]["live_storages"] == 0


def test_t24_the_first_batch_can_be_the_profile(shard: Any) -> None:
    plain = train(shard(make_gpt()), 3)
    model = shard(make_gpt())
    with hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(mixed)) as inside:
        assert_same(whole(plain), whole(train(inside, 3)))


def test_t24_the_optimizer_of_these_cases_takes_sharded_and_whole_weights_on_gpus_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU torch would update them all by one kernel, which takes no mix of both."""
    defaults = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name.
    fast = [DEVICE.type]
    monkeypatch.setattr(defaults, "_get_foreach_kernels_supported_devices", lambda: fast)
    assert len(train(only_blocks(make_gpt()), 2)) == 2


def test_t24_a_micro_batch_without_communication_is_bit_equal(rule: Any) -> None:
    def accumulate(model: Any) -> list[Any]:
        for index in range(3):
            model.set_requires_gradient_sync(index == 2)
            ids, targets = batch(index)
            loss_of(model(ids), targets).backward()
        return whole([(torch.zeros(()), gradients(model))])[0][1]

    plain = accumulate(by_block(make_gpt()))
    model = by_block(make_gpt())
    with hf.hyperframes(
        model, profile=profiled(model), activation_budget="1GiB", _backend=default_backend(rule)
    ) as inside:
        seen = accumulate(inside)
    assert same_gradients(plain, seen)


def test_t24_sharding_inside_the_context_is_refused_by_name() -> None:
    model = make_gpt()
    with hf.hyperframes(model, activation_budget="1GiB", _backend=default_backend(peer)) as inside:
        by_block(model)
        with pytest.raises(hf.FailedPrecondition, match="shard the model first"):
            inside(batch(0)[0])


def shape_of(profile: hf.Profile) -> list[tuple[str, list[tuple[int, int]]]]:
    return [(b.name, [(s.ordinal, s.nbytes) for s in b.storages]) for b in profile.blocks]


@pytest.mark.parametrize("sharded", [by_block, by_part], ids=lambda f: f.__name__)
def test_t7_the_profile_of_a_sharded_model_is_that_of_the_whole_one(sharded: Any) -> None:
    whole_profile = profiled(make_gpt())
    profile = profiled(sharded(make_gpt()))
    assert shape_of(profile) == shape_of(whole_profile)


def gathered_now(model: nn.Module) -> set[int]:
    """Addresses at which weights are at this moment."""
    weights = [p for p in model.parameters() if not hasattr(p, "full_tensor")]
    return {p.untyped_storage().data_ptr() for p in weights}


@pytest.mark.parametrize("sharded", [by_block, by_part], ids=lambda f: f.__name__)
def test_t7_gathered_weights_never_move(sharded: Any) -> None:
    model = sharded(make_gpt())
    backend = FakeBackend(peer)
    profile = profiled(model)
    with hf.hyperframes(
        model, profile=profile, activation_budget="1GiB", _backend=backend
    ) as inside:
        moved: list[bool] = []
        put = backend.engine.put

        def watch(*args: Any) -> Any:
            # Now, for FSDP gives the memory of weights back, and activations get it next.
            gathered = gathered_now(model)
            assert gathered
            moved.append(args[3] in gathered)
            return put(*args)

        backend.engine.put = watch  # type: ignore[assignment, method-assign]
        loss_of(inside(batch(0)[0]), batch(0)[1]).backward()
    assert len(moved) > 10
    assert not any(moved)


@pytest.mark.parametrize("sharded", [by_block, by_part], ids=lambda f: f.__name__)
def test_t7_the_meter_does_not_count_gathered_weights(sharded: Any) -> None:
    model = make_gpt()
    with hf.ActivationMeter(model) as plain:
        train(model, 2)
    model = sharded(make_gpt())
    with hf.ActivationMeter(model) as meter:
        train(model, 2)
    assert meter.peak_bytes == plain.peak_bytes


# ---- Compiled as well: each pair works for others, all three do not ----


def compiled_then_sharded(way: Any, backend: Any) -> nn.Module:
    model = make_gpt()
    model.blocks = nn.ModuleList(way(block, backend) for block in model.blocks)
    return by_block(model)


def sharded_then_compiled(way: Any, backend: Any) -> nn.Module:
    model = by_block(make_gpt())
    model.blocks = nn.ModuleList(way(block, backend) for block in model.blocks)
    return model


@pytest.mark.parametrize("order", [compiled_then_sharded, sharded_then_compiled])
@pytest.mark.parametrize("name", list(WAYS))
def test_t22_compiled_and_sharded_blocks_are_bit_equal_and_run_compiled(
    order: Any, name: str, backend_name: str
) -> None:
    def way(block: nn.Module, backend: Any) -> nn.Module:
        return WAYS[name](block, backend, fullgraph=False)

    torch._dynamo.reset()
    alone = Counting()
    plain = train(order(way, alone), 4)
    torch._dynamo.reset()
    counting = Counting()
    model = order(way, counting)
    profile = profiled(model)
    assert "FSDP gathers" in profile.block("blocks.1").keep_reason
    made, called = counting.graphs, counting.calls
    context = hf.hyperframes(
        model, profile=profile, activation_budget="1GiB", _backend=BACKENDS[backend_name](mixed)
    )
    with context as inside:
        assert_same(whole(plain), whole(train(inside, 4)))
    # FSDP's own hooks may cut the graph; HyperFrames adds no piece and no version.
    assert counting.graphs == made == alone.graphs > 0
    assert counting.calls - called == alone.calls >= 12
    assert context.stats()["unplanned_storages"] == 0
    assert context.stats()["engine"]["live_storages"] == 0


@pytest.mark.parametrize("order", [compiled_then_sharded, sharded_then_compiled])
@pytest.mark.parametrize("name", list(WAYS))
def test_t7_weights_gathered_for_compiled_blocks_are_not_planned(order: Any, name: str) -> None:
    def way(block: nn.Module, backend: Any) -> Any:
        return WAYS[name](block, backend, fullgraph=False)

    torch._dynamo.reset()
    model = make_gpt()
    model.blocks = nn.ModuleList(way(block, Counting()) for block in model.blocks)
    alone = profiled(model)
    torch._dynamo.reset()
    profile = profiled(order(way, Counting()))
    assert [b.nbytes for b in profile.blocks] == [b.nbytes for b in alone.blocks]
