"""What copies cost the compute beside them: measured on a device with a clock of its own, with real
copies between simulated GPUs, and handed to the planner."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import hyperframes as hf
from cases.small_gpt import assert_same, batch, loss_of, make_gpt, train
from hyperframes import _copy_costs, _native
from hyperframes._backend import ClusterBackend, EmbeddedBackend, _problem
from hyperframes._config import Cluster
from hyperframes._copy_costs import Measurement, Tools, Work
from hyperframes._lane_copies import LaneCopies
from hyperframes.plan import rank_problem
from hyperframes.profile import CopySlowdown

SHARES = {
    ("host", "out"): 0.0517, ("host", "back"): 0.0961, ("peer", "out"): 0.02, ("peer", "back"): 0.0,
}  # fmt: skip
FORWARD_S, BACKWARD_S = 0.010, 0.020


class FakeGpu:
    """A compute stream and copies beside it that slow it. Time passes only by what is queued."""

    def __init__(self, shares: dict[tuple[str, str], float]) -> None:
        self.shares = shares
        self.time = 0.0
        self.copies_end = 0.0
        self.share = 0.0
        self.short = 1.0  # Copies last such a part of what they were asked to.
        self.memory = 1 << 30
        self.opening_s = 0.0
        self.started: list[tuple[str, str]] = []
        self.closed = 0

    @property
    def tiers(self) -> Sequence[str]:
        return sorted({tier for tier, _ in self.shares})

    def compute(self, seconds: float) -> None:
        beside = max(0.0, self.copies_end - self.time)
        slowed = min(seconds, beside / (1 + self.share))
        self.time += slowed * (1 + self.share) + seconds - slowed

    def start(self, tier: str, direction: str, seconds: float) -> None:
        self.started.append((tier, direction))
        self.share = self.shares[tier, direction]
        self.copies_end = self.time + seconds * self.short

    def join(self) -> None:
        self.time = max(self.time, self.copies_end)

    drain = join

    def close(self) -> None:
        self.closed += 1

    def mark(self) -> float:
        return self.time

    def seconds(self, first: float, last: float) -> float:
        return last - first

    def now(self) -> float:
        return self.time

    def allocated(self) -> int:
        self.memory -= 2 << 20  # Each look finds what was given back meanwhile.
        return self.memory

    def tools(self) -> Tools:
        def copies(nbytes: int) -> FakeGpu:
            assert nbytes <= 2 << 20, "more than the profile has given back"
            self.time += self.opening_s
            return self

        return Tools(self, copies)

    def work(self, seconds: float = FORWARD_S) -> Work:
        return Work(
            "work", lambda: self.compute(seconds), lambda _: self.compute(2 * seconds), 3 * seconds
        )


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    _copy_costs._known.clear()


def as_dict(found: Sequence[CopySlowdown]) -> dict[str, tuple[float, float]]:
    return {slowdown.tier: (slowdown.out, slowdown.back) for slowdown in found}


def test_shares_are_medians_in_whole_hundredths_by_tier_and_direction() -> None:
    gpu = FakeGpu(SHARES)
    measurement = Measurement(gpu.work(), gpu, gpu)
    measurement.run(deadline=100)
    assert as_dict(measurement.figures()) == {"host": (0.05, 0.1), "peer": (0.02, 0.0)}


def test_no_round_begins_that_would_end_late() -> None:
    gpu = FakeGpu(SHARES)
    measurement = Measurement(gpu.work(0.05), gpu, gpu)  # Alone 0.15 s, a round at most 0.63 s.
    measurement.run(deadline=1.0)
    assert measurement.rounds == 1
    assert gpu.time <= 1.0
    late = Measurement(gpu.work(1.0), gpu, gpu)
    late.run(deadline=gpu.time + 1.0)
    assert late.rounds == 0
    assert late.figures() == []


def test_copies_that_ended_first_do_not_count_and_last_longer_the_next_time() -> None:
    gpu = FakeGpu({("host", "out"): 0.5, ("host", "back"): 0.25})
    gpu.short = 0.5  # The link is twice as fast as it was taken to be.
    measurement = Measurement(gpu.work(), gpu, gpu)
    measurement.run(deadline=100)
    assert as_dict(measurement.figures()) == {"host": (0.5, 0.25)}
    gpu.short = 0.0
    never = Measurement(gpu.work(), gpu, gpu)
    never.run(deadline=gpu.time + 100)
    assert never.figures() == []


def test_what_is_measured_is_a_share_from_none_to_all() -> None:
    gpu = FakeGpu({("host", "out"): -0.3, ("host", "back"): 2.0})
    gpu.short = 4.0
    measurement = Measurement(gpu.work(), gpu, gpu)
    measurement.run(deadline=100)
    assert as_dict(measurement.figures()) == {"host": (0.0, 1.0)}


class OnGpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gpu: FakeGpu) -> torch.Tensor:
        ctx.gpu = gpu
        gpu.compute(FORWARD_S)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.gpu.compute(BACKWARD_S)
        return gradients[0] * 2, None


class Timed(nn.Module):
    """A block that takes the fake GPU's time, and has a buffer that every forward changes."""

    def __init__(self, gpu: FakeGpu, *, moody: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8) if not moody else nn.Identity()
        self.gpu, self.moody, self.calls = gpu, moody, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = OnGpu.apply(self.norm(self.linear(x)), self.gpu)
        return y + self.calls if self.moody else y


class Model(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def fake_gpu(monkeypatch: pytest.MonkeyPatch, **given: Any) -> FakeGpu:
    gpu = FakeGpu(SHARES, **given)
    monkeypatch.setattr(_copy_costs, "tools_for", lambda device: gpu.tools())
    return gpu


def test_a_profile_measures_with_the_first_block_that_may_be_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = fake_gpu(monkeypatch)
    blocks = [Timed(gpu, moody=True), *(plain_block(gpu) for _ in range(2))]
    profile = hf.profile(Model(*blocks), torch.randn(4, 8))
    assert profile.block("blocks.0").keep_reason
    assert profile.copy_slowdown_note.startswith("measured with blocks.1, ")
    assert as_dict(profile.copy_slowdowns) == {"host": (0.05, 0.1), "peer": (0.02, 0.0)}
    assert gpu.closed == 1
    text = profile.summary()
    assert "by 5% while frames go to host memory and 10% while they come back" in text
    assert "measured with blocks.1" in text


def plain_block(gpu: FakeGpu) -> Timed:
    block = Timed(gpu)
    block.norm = nn.Identity()
    return block


def test_where_no_block_may_be_run_again_a_product_stands_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = fake_gpu(monkeypatch)

    def product(*_: Any, out: torch.Tensor) -> None:
        gpu.compute(0.001)

    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(_copy_costs, "_SIZES", (2,))
    # BatchNorm's running averages: the block updates a buffer.
    profile = hf.profile(Model(Timed(gpu), Timed(gpu)), torch.randn(4, 8))
    assert profile.copy_slowdown_note.startswith("measured with a product of 2, ")
    assert as_dict(profile.copy_slowdowns) == {"host": (0.05, 0.1), "peer": (0.02, 0.0)}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda gpu: setattr(gpu, "shares", {}), "not measured: nothing is lent here"),
        (lambda gpu: setattr(gpu, "short", 0.0), "not measured: no copy outlived"),
        (lambda gpu: setattr(gpu, "start", None), "not measured: TypeError"),
        (
            lambda gpu: setattr(gpu, "opening_s", 1.1),
            "not measured: no time for blocks.0, after 1.1",
        ),
    ],
    ids=["no lender", "short copies", "failure", "no time"],
)
def test_what_could_not_be_measured_is_said_and_counts_as_nothing(
    spoil: Callable[[FakeGpu], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = fake_gpu(monkeypatch)
    spoil(gpu)
    monkeypatch.setattr(_copy_costs, "_SIZES", ())
    profile = hf.profile(Model(plain_block(gpu)), torch.randn(4, 8))
    assert said in profile.copy_slowdown_note
    assert profile.copy_slowdowns == []
    assert said in profile.summary()


def test_blocks_alike_are_measured_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake_gpu(monkeypatch)
    model, given = Model(plain_block(gpu)), torch.randn(4, 8)
    first = hf.profile(model, given)
    count = len(gpu.started)
    assert count > 0
    second = hf.profile(model, given)
    assert len(gpu.started) == count
    assert second.copy_slowdowns == first.copy_slowdowns


def test_nothing_is_measured_on_a_processor() -> None:
    profile = hf.profile(Model(nn.Linear(8, 8)), torch.randn(4, 8))
    assert profile.copy_slowdowns == []
    assert profile.copy_slowdown_note == ""
    assert "beside copies" not in profile.summary()


class WallTimer:
    """The processor's clock, for real copies between simulated GPUs."""

    def mark(self) -> float:
        return time.perf_counter()

    now = mark

    def seconds(self, first: float, last: float) -> float:
        return last - first

    def drain(self) -> None:
        pass

    _memory = 1 << 40

    def allocated(self) -> int:
        self._memory -= 2 << 20
        return self._memory


@pytest.fixture
def real_copies(monkeypatch: pytest.MonkeyPatch) -> list[LaneCopies]:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 1GiB")
    opened: list[LaneCopies] = []

    def copies(nbytes: int) -> LaneCopies:
        opened.append(LaneCopies(torch.device("cpu"), nbytes))
        return opened[-1]

    monkeypatch.setattr(_copy_costs, "tools_for", lambda device: Tools(WallTimer(), copies))
    return opened


def test_engine_copies_go_to_every_tier_and_come_back(real_copies: list[LaneCopies]) -> None:
    tools = _copy_costs.tools_for(torch.device("cpu"))
    assert tools is not None
    copies = tools.copies(1 << 20)
    assert sorted(copies.tiers) == ["host", "peer"]
    engine = real_copies[0]._engine
    before = engine.stats()
    for tier in copies.tiers:
        for direction in ("out", "back"):
            copies.start(tier, direction, 0.005)
    copies.join()
    after = engine.stats()
    for tier in copies.tiers:
        assert after["bytes_out"][tier] > before["bytes_out"][tier]
        assert after["bytes_in"][tier] > before["bytes_in"][tier]
    assert after["overflow_to_host"] == after["overflow_to_keep"] == 0
    copies.close()


def test_training_is_the_same_to_the_last_bit_after_a_measurement(
    real_copies: list[LaneCopies],
) -> None:
    options: dict[str, Any] = {"layers": 3, "dropout": 0.1}
    plain = train(make_gpt(**options), 4)
    model = make_gpt(**options)
    ids, targets = batch(0)
    rng = torch.get_rng_state()
    profile = hf.profile(model, ids, loss_fn=lambda out: loss_of(out, targets))
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(real_copies) == 1
    assert profile.copy_slowdown_note.startswith(
        ("measured with blocks.0", "not measured: no copy")
    )
    for slowdown in profile.copy_slowdowns:
        assert 0 <= slowdown.out <= 1
        assert 0 <= slowdown.back <= 1
    budget = profile.activation_bytes // 2
    with hf.hyperframes(model, profile=profile, activation_budget=budget) as inside:
        assert_same(plain, train(inside, 4))


def test_a_batch_norm_keeps_its_averages(real_copies: list[LaneCopies]) -> None:
    model = Model(*(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)) for _ in range(2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hf.profile(model, torch.randn(32, 64))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.fixture(scope="module")
def profile() -> hf.Profile:
    ids, targets = batch(0)
    found = hf.profile(make_gpt(layers=6), ids, loss_fn=lambda out: loss_of(out, targets))
    for block in found.blocks:  # Whole steps of a second: what is planned hangs on no noise.
        block.forward_s, block.backward_s = 0.1, 0.2
        block.selective = []
    return found


def with_slowdown(profile: hf.Profile, share: float) -> hf.Profile:
    return dataclasses.replace(
        profile, copy_slowdowns=[CopySlowdown("host", share, share / 2)],
        copy_slowdown_note="measured with blocks.0, 3 rounds in 0.50 s",
    )  # fmt: skip


def test_the_figures_are_part_of_the_problem_and_survive_json(profile: hf.Profile) -> None:
    told = hf.Profile.from_json(with_slowdown(profile, 0.08).to_json())
    assert told.copy_slowdowns == [CopySlowdown("host", 0.08, 0.04)]
    assert told.scaled(((2, 128), "int64") and told.signature).copy_slowdowns == told.copy_slowdowns
    problem = rank_problem(told, rank=0, gpu="GPU-0", budget=None, activation_budget=None)
    assert problem["host_slowdown"] == {"out": 0.08, "in": 0.04}
    assert "peer_slowdown" not in problem
    plain = rank_problem(profile, rank=0, gpu="GPU-0", budget=None, activation_budget=None)
    assert "host_slowdown" not in plain


def test_the_coordinator_is_told_in_the_ranks_profile(profile: hf.Profile) -> None:
    asked: list[dict[str, Any]] = []

    class Asking(ClusterBackend):
        def __init__(self) -> None:
            self._answer = {}
            self._gpu = "GPU-0"
            self._where = Cluster("", "job", "token", "GPU-0", 0, 1, 1.0)

        def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
            asked.append(request)
            return {"plan": {}}

    told = with_slowdown(profile, 0.08)
    Asking().plan(rank_problem(told, rank=0, gpu="GPU-0", budget=None, activation_budget=None), {})
    assert asked[0]["rank"]["host_slowdown"] == {"out": 0.08, "in": 0.04}


def test_a_plan_charges_for_them(profile: hf.Profile) -> None:
    compute = sum(block.forward_s + block.backward_s for block in profile.blocks)
    machine = {
        "devices": [
            {"uuid": "GPU-0", "node": "local", "usable_bytes": 1 << 30},
            {"uuid": "host:local", "node": "local", "is_host": True, "usable_bytes": 1 << 30,
             "lendable_bytes": 1 << 30},
        ],
        # Half of the activations take about a fifth of the step each way.
        "links": [{"from": "GPU-0", "to": "host:local", "latency_s": 1e-5,
                   "bytes_per_second": profile.activation_bytes / compute * 2.5}],
    }  # fmt: skip

    def step(told: hf.Profile) -> float:
        budget = profile.activation_bytes * 7 // 10
        rank = rank_problem(told, rank=0, gpu="GPU-0", budget=None, activation_budget=budget)
        plan = _native.plan(_problem([rank], machine, {"forbid_recompute": True}))
        assert int(plan["ranks"][0]["host_bytes"]) > 0
        return float(plan["ranks"][0]["predicted_step_s"])

    free, priced = step(profile), step(with_slowdown(profile, 0.08))
    assert free < priced <= free + 0.08 * compute
    assert step(with_slowdown(profile, 0.16)) > priced


def test_stats_tell_what_a_plan_was_priced_with(
    profile: hf.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 1GiB")
    for told, expected in (
        (profile, {}),
        (with_slowdown(profile, 0.08), {"host": {"out": 0.08, "in": 0.04}}),
    ):
        context = hf.hyperframes(
            make_gpt(layers=6), profile=told, activation_budget=profile.activation_bytes
        )
        with context:
            assert context.stats()["copy_slowdown"] == expected


def test_a_simulated_device_says_what_its_copies_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 1GiB@copy-slowdown=0.08")
    links = EmbeddedBackend(torch.device("cpu")).describe()["links"]
    assert {link["compute_slowdown"] for link in links} == {0.08}
    assert len(links) == 4  # Each way between the two, and from each to the host.
