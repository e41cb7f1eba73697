"""SELECTIVE: expensive operators run once, the rest again; gradients are those of the plain run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import hyperframes as hf
from cases.backends import BACKENDS
from cases.selective_models import (
    WIDTH,
    Custom,
    Experts,
    Grouped,
    InPlace,
    Noisy,
    RandomGraph,
    Secret,
    Shares,
    Stack,
    Tables,
    sample,
    selective,
    stack,
    steps,
)
from cases.small_gpt import DEVICE, assert_same, batch, gradients, loss_of, make_gpt, train
from hyperframes import _measure_operators
from hyperframes._backend import make_backend
from hyperframes._forced import forced_selective


@pytest.fixture
def every_operator() -> Iterator[None]:
    with _measure_operators.every_operator():
        yield


def gpt_profile(model: Any, **options: Any) -> hf.Profile:
    ids, targets = batch(0)
    return hf.profile(model, ids, loss_fn=lambda out: loss_of(out, targets), **options)


TIERS = ["keep", "peer", "host", ""]


@pytest.mark.usefixtures("every_operator")
@pytest.mark.parametrize("backend_name", ["unkind", "native", "chaotic"])
@pytest.mark.parametrize(
    ("dropout", "autocast"), [(0.0, None), (0.2, torch.bfloat16)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("tier", TIERS, ids=["keep", "peer", "host", "mixed"])
def test_every_tier_gives_the_bits_of_the_plain_run(
    tier: str, dropout: float, autocast: torch.dtype | None, backend_name: str
) -> None:
    plain = train(make_gpt(dropout=dropout), autocast=autocast)
    model = make_gpt(dropout=dropout)
    profile = gpt_profile(model, dtype=autocast)
    assert len(profile.block("blocks.1").selective) > 8
    backend = BACKENDS[backend_name](lambda block, storage: f"selective:{tier}")
    context = hf.hyperframes(model, profile=profile, _backend=backend, activation_budget="1GiB")
    with context as inside:
        assert_same(plain, train(inside, autocast=autocast))
    stats = context.stats()
    assert stats["selective_blocks"] >= 3 * 3
    assert stats["selective_served"] > 3 * 3 * 8
    assert not any(stats[f"selective_{why}"] for why in ("stale", "diverged", "unlike_profile"))
    assert stats["unplanned_storages"] == 0
    assert stats["engine"]["live_storages"] == 0


class Counted(TorchDispatchMode):
    """How often each operator ran."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counted_backward(model: nn.Module) -> Counter[str]:
    loss = model(sample()).square().mean()
    with Counted() as counted:
        loss.backward()
    return counted.seen


KINDS: dict[str, Callable[[], nn.Module]] = {
    "grouped attention": Grouped,
    "in place": InPlace,
    "experts": Experts,
    "random numbers": Noisy,
    "function": Custom,
    "tables": Tables,
}


@pytest.mark.usefixtures("every_operator")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_block_gives_the_bits_of_the_plain_run(
    kind: str, dtype: torch.dtype | None
) -> None:
    def run(model: nn.Module) -> Any:
        with torch.autocast(DEVICE.type, dtype, enabled=dtype is not None):
            return steps(model)

    plain = run(stack(KINDS[kind]))
    model = stack(KINDS[kind])
    context = selective(model, dtype=dtype)
    with context as inside:
        assert_same(plain, run(inside))
    stats = context.stats()
    assert stats["selective_blocks"] >= 2 * 2, [b.selective_reason for b in context._profile.blocks]
    assert stats["selective_served"] >= 2 * 2
    assert stats["selective_stale"] == stats["selective_diverged"] == 0


@pytest.mark.usefixtures("every_operator")
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_of_operators_give_the_bits_of_the_plain_run(seed: int) -> None:
    plain = steps(stack(lambda: RandomGraph(seed)))
    context = selective(stack(lambda: RandomGraph(seed)), backend=("native", "unkind")[seed % 2])
    with context as inside:
        assert_same(plain, steps(inside))
    stats = context.stats()
    assert stats["selective_blocks"] == 4
    assert stats["selective_stale"] == stats["selective_diverged"] == 0


@pytest.mark.usefixtures("every_operator")
def test_what_was_saved_does_not_run_again_and_the_rest_does() -> None:
    plain = counted_backward(stack(Grouped))
    model = stack(Grouped)
    profile = hf.profile(model, sample())
    for block in profile.blocks:
        block.selective = [s for s in block.selective if "mm" in s.op or "attention" in s.op]
    backend = BACKENDS["native"](lambda block, storage: "selective:host")
    with hf.hyperframes(model, profile=profile, _backend=backend) as inside:
        again = counted_backward(inside)
    expensive = [name for name in plain | again if "mm" in name or "attention" in name]
    assert len(expensive) > 1
    assert {name: again[name] for name in expensive} == {name: plain[name] for name in expensive}
    assert again["silu"] == plain["silu"] + 2
    assert again["native_layer_norm"] == 2


@pytest.mark.usefixtures("every_operator")
def test_routing_is_always_saved_and_never_decided_twice() -> None:
    model = stack(Experts)
    profile = hf.profile(model, sample())
    always = {s.op for s in profile.block("layers.0").selective if s.always}
    assert always == {"aten.topk.default", "aten.nonzero.default"}
    for block in profile.blocks:
        block.selective = [s for s in block.selective if s.always]
    backend = BACKENDS["native"](lambda block, storage: "selective:peer")
    with hf.hyperframes(model, profile=profile, _backend=backend) as inside:
        again = counted_backward(inside)
    assert again["topk"] == again["nonzero"] == 0
    assert again["addmm"] > 0


@pytest.mark.usefixtures("every_operator")
@pytest.mark.parametrize("tier", ["keep", "host"])
def test_a_graph_that_is_kept_runs_backward_twice(tier: str) -> None:
    def twice(loss: torch.Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    plain = steps(stack(Grouped), backward=twice)
    context = selective(stack(Grouped), tier)
    with context as inside:
        assert_same(plain, steps(inside, backward=twice))
    assert context.stats()["engine"]["live_storages"] == 0


@pytest.mark.usefixtures("every_operator")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_micro_batches_accumulate_under_one_autocast(dtype: torch.dtype | None) -> None:
    """Autocast casts each weight once for all of them, and once more in each recomputation."""

    def accumulate(model: nn.Module) -> Any:
        model.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, dtype, enabled=dtype is not None):
            losses = [model(sample() * scale).square().mean() for scale in (1.0, 0.5, 2.0)]
        for loss in losses:
            loss.backward()
        return [(losses[0].detach(), gradients(model))]

    plain = accumulate(stack(Grouped))
    context = selective(stack(Grouped), dtype=dtype)
    with context as inside:
        accumulate(inside)
        assert_same(plain, accumulate(inside))
    stats = context.stats()
    assert stats["selective_blocks"] == 2 * 3 * 2
    assert stats["selective_diverged"] == 0


@pytest.mark.usefixtures("every_operator")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "hidden view"])
@pytest.mark.parametrize("tier", ["keep", "peer"])
def test_an_output_that_is_changed_after_its_block_runs_again(tier: str, bias: bool) -> None:
    """Legal, for backward does not need it: so it must not become wrong, nor an error."""

    class Changing(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for layer in self.layers:
                x = layer(x)
                assert isinstance(layer, Shares) and layer.left is not None
                layer.left.mul_(3.0)
            return self.last(x)

    plain = steps(Changing(lambda: Shares(bias)).to(DEVICE))
    model = Changing(lambda: Shares(bias)).to(DEVICE)
    context = selective(model, tier)
    with context as inside, pytest.warns(UserWarning, match="was changed in place afterwards"):
        assert_same(plain, steps(inside))
    assert context.stats()["selective_stale"] == 2 * 2
    assert context.stats()["selective_served"] > 0


@pytest.mark.usefixtures("every_operator")
def test_a_forward_unlike_the_profiled_one_is_run_again_instead() -> None:
    class Forgetful(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                if self.forgets:
                    layer.table = None  # type: ignore[assignment]
            return super().forward(x)

        forgets = False

    plain = steps(Forgetful(Tables).to(DEVICE))
    model = Forgetful(Tables).to(DEVICE)
    context = selective(model)
    model.forgets = True
    with context as inside, pytest.warns(UserWarning, match="SELECTIVE, but its operator"):
        assert_same(plain, steps(inside))
    stats = context.stats()
    # Its operators come later than planned, and are others again when the table is there.
    assert stats["selective_unlike_profile"] > 0
    assert stats["selective_diverged"] == 2 * 2


def test_a_block_that_does_not_stand_it_is_never_selective() -> None:
    with _measure_operators.every_operator():
        profile = hf.profile(stack(Secret), sample())
    block = profile.block("layers.0")
    assert block.selective == [] and "other bits" in block.selective_reason
    assert not block.keep_reason  # Run again as a whole it is as it was.


def test_compiled_code_inside_a_block_keeps_it_from_being_selective() -> None:
    compiled = torch.compile(lambda x: torch.sin(x) * 2, backend="eager")

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.b(compiled(self.a(x)))
            return y

    with _measure_operators.every_operator():
        profile = hf.profile(stack(Mixed), sample())
    assert profile.block("layers.0").selective_reason == "it runs compiled code"
    assert profile.block("layers.0").selective == []


@pytest.mark.usefixtures("every_operator")
def test_a_compiled_block_is_left_alone() -> None:
    model = stack(Grouped)
    model.layers[0].compile(backend="eager")
    plain = steps(model)
    model = stack(Grouped)
    model.layers[0].compile(backend="eager")
    profile = hf.profile(model, sample())
    assert profile.block("layers.0").selective == []
    assert len(profile.block("layers.1").selective) > 4
    backend = forced_selective(make_backend(DEVICE), "host")
    context = hf.hyperframes(model, profile=profile, activation_budget="1GiB", _backend=backend)
    with context as inside:
        assert context.plan is not None
        assert context.plan.policies["layers.0"] == "POLICY_SAVE"
        assert_same(plain, steps(inside))
    assert context.stats()["selective_blocks"] == 2


@pytest.mark.usefixtures("every_operator")
def test_blocks_that_fsdp2_gathers_are_selective_too() -> None:
    distributed = torch.distributed
    store = HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh(DEVICE.type, (1,))

        def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
            model = stack(Grouped)
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model, torch.optim.SGD(model.parameters(), lr=0.01)

        def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
            seen: Any = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(sample()).square().mean()
                loss.backward()
                local = [p.grad.to_local().clone() for p in model.parameters()]  # type: ignore
                seen.append((loss.detach(), local))
                optimizer.step()
            return seen

        plain = run(*sharded())
        model, optimizer = sharded()
        context = selective(model, "")
        with context as inside:
            assert_same(plain, run(inside, optimizer))
        stats = context.stats()
        assert stats["selective_blocks"] == 2 * 3
        assert stats["selective_diverged"] == stats["selective_stale"] == 0
    finally:
        distributed.destroy_process_group()


@pytest.mark.usefixtures("every_operator")
def test_random_numbers_of_a_saved_operator_are_not_drawn_again_by_the_next() -> None:
    profile = hf.profile(stack(Noisy), sample())
    drawing = {s.op for s in profile.block("layers.0").selective if s.random}
    assert "aten.bernoulli.default" in drawing and "aten.rand_like.default" in drawing


@pytest.mark.usefixtures("every_operator")
def test_an_error_in_forward_leaves_nothing_behind() -> None:
    class Fails(Grouped):
        fail = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            if self.fail:
                raise ValueError("in the middle")
            return y

    plain = steps(stack(Fails))
    model = stack(Fails)
    context = selective(model, "host")
    with context as inside:
        model.layers[1].fail = True  # type: ignore[assignment]
        with pytest.raises(ValueError, match="in the middle"):
            inside(sample())
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        model.layers[1].fail = False  # type: ignore[assignment]
        assert_same(plain, steps(inside))
    assert context.stats()["engine"]["live_storages"] == 0


def test_matrix_products_and_attention_are_found_by_measuring() -> None:
    """Large enough that each takes a hundred copies of its output."""
    wide = 1024

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(wide, wide), nn.Linear(wide, wide)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.up(x).view(1, -1, 1, wide).transpose(1, 2)
            y = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
            return x + torch.relu(self.down(y.reshape(x.shape) + x) * 2.0)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(wide, wide), nn.ModuleList([Large()])[0])
    profile = hf.profile(model, torch.randn(1024, wide), blocks=["1"])
    found = sorted(
        profile.block("1").selective, key=lambda s: s.recompute_s / s.nbytes, reverse=True
    )
    names = [s.op.split(".")[1] for s in found[:3]]
    assert sorted(n for n in names if "mm" in n) == ["addmm", "addmm"]
    assert sum("attention" in n for n in names) == 1


@pytest.mark.usefixtures("every_operator")
def test_a_new_length_is_planned_from_the_profile() -> None:
    lengths = [64, 48, 64, 32]
    plain = train(make_gpt(), steps=4, lengths=lambda step: lengths[step])
    model = make_gpt()
    backend = BACKENDS["native"](lambda block, storage: "selective:")
    context = hf.hyperframes(
        model, profile=gpt_profile(model), _backend=backend, activation_budget="1GiB"
    )
    with context as inside:
        assert_same(plain, train(inside, steps=4, lengths=lambda step: lengths[step]))
    assert context.stats()["selective_served"] > 0


def test_a_profile_with_operators_survives_json() -> None:
    with _measure_operators.every_operator():
        profile = hf.profile(stack(Grouped), sample())
    assert profile.block("layers.0").selective
    assert hf.Profile.from_json(profile.to_json()) == profile
    values = json.loads(profile.to_json())
    for block in values["blocks"]:  # As releases before SELECTIVE wrote it.
        for key in ("selective", "selective_base_s", "selective_reason"):
            block.pop(key)
    assert hf.Profile.from_json(json.dumps(values)).block("layers.0").selective == []
