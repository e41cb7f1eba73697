"""hf.check: conflicts are planted, and each is named by its feature, its part and its block."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperframes as hf
from cases.small_gpt import batch, loss_of, make_gpt
from hyperframes._search import minimal
from hyperframes._suspects import all_off, suspects

HIDDEN = 64


@pytest.fixture(autouse=True)
def two_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 256MiB")
    monkeypatch.setenv("HYPERFRAMES_PROGRESS", "off")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, HIDDEN)
        self.down = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Stack(nn.Module):
    """Three layers, of which the second can be another."""

    def __init__(self, odd: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(HIDDEN, HIDDEN)
        self.layers = nn.ModuleList([Layer(), odd or Layer(), Layer()])

    def up(self, index: int) -> nn.Module:
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer.up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.randn(64, HIDDEN, generator=torch.Generator().manual_seed(1))


def check(model: nn.Module, **options: Any) -> hf.CheckReport:
    return hf.check(model, X, loss_fn=lambda y: y.square().mean(), **options)


def verdicts(report: hf.CheckReport) -> dict[str, str]:
    return {run.name: run.verdict for run in report.runs}


def test_a_healthy_model_is_ok_and_is_left_as_it_was() -> None:
    model = make_gpt(dropout=0.1)
    ids, targets = batch(0)
    weights = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    report = hf.check(model, ids, loss_fn=lambda out: loss_of(out, targets))
    assert report.ok and report.culprit is None
    assert list(verdicts(report)) == [
        "plain",
        "plain, again",
        "one block (blocks.0), every feature",
        "every block, every feature",
    ]
    assert str(report).splitlines()[-1].startswith("OK: losses and gradients")
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_a_healthy_model_is_ok_under_autocast() -> None:
    assert check(Stack(), dtype=torch.bfloat16).ok


class ChangesSaved(Layer):
    """tanh saves its result, which is then doubled where autograd cannot see it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.up(x))
        y.data.mul_(2)
        return x + self.down(y)


def test_an_in_place_change_of_a_saved_tensor_is_named_with_its_block() -> None:
    report = check(Stack(ChangesSaved()))
    assert not report.ok
    assert report.culprit is not None
    assert report.culprit.feature == "offload"
    assert report.culprit.part == "in-place change of a saved float32 64x64"
    assert report.culprit.block == "layers.1"
    # Or the checksum of a copy that was under way has seen it.
    assert verdicts(report)["every block, every feature"] in ("different", "error")
    assert any(w.part == report.culprit.part for w in report.warnings)
    assert "Conflict: offload × in-place change" in str(report)


class Batched(Layer):
    """Counts its calls in a buffer, as BatchNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def test_a_block_that_is_left_alone_is_noted_with_the_reason() -> None:
    report = check(Stack(Batched()))
    assert report.ok
    assert "layers.1 is never recomputed: updates a buffer." in report.notes


class WritesToItsInput(Layer):
    """As a block that begins with ReLU(inplace=True)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mul_(0.5)
        return torch.tanh(self.up(x))


class WritesBetweenBlocks(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x += 1  # An output of a block, which eager lets anybody write to.
        for layer in self.layers:
            x = layer(x) * 1
        return x


def test_writing_in_place_where_eager_allows_it_is_no_conflict() -> None:
    report = check(WritesBetweenBlocks(WritesToItsInput()))
    assert report.ok, str(report)
    assert "layers.1 is never recomputed: changes its input in place." in report.notes


class InputChangedLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(HIDDEN))
        self.layers = nn.ModuleList([Adds(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        y = self.layers[0](x)
        x.mul_(2)  # Nobody saved x, so that eager does not mind.
        return self.layers[1](y) + x


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.up(x + 1))


def test_an_input_changed_after_its_block_conflicts_with_recompute() -> None:
    report = check(InputChangedLater())
    assert report.culprit is not None
    assert report.culprit.feature == "recompute"
    assert report.culprit.block == "layers.0"
    assert report.culprit.part == "in-place change after saving"
    assert "An input of block layers.0 was changed in place" in report.culprit.why
    assert verdicts(report)["without recompute"] == "equal"
    assert verdicts(report)["without peer offload"] == "error"


PHASE = {"scale": 1.0}


class ReadsGlobal(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * PHASE["scale"]


class WritesGlobal(Stack):
    """Each forward starts at 1 and leaves 3 behind, which a recomputation would read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        PHASE["scale"] = 1.0
        y = super().forward(x)
        PHASE["scale"] = 3.0
        return torch.tanh(y)


class SquaresByGlobal(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(x) * PHASE["scale"])


def test_state_that_changes_between_forward_and_recomputation_is_named() -> None:
    report = check(WritesGlobal(SquaresByGlobal()))
    assert report.culprit is not None
    assert report.culprit.feature == "recompute"
    assert report.culprit.part == "state that changes between forward and backward"
    assert report.culprit.block == "layers.1"
    assert "gradient of" in report.culprit.why
    assert "forbid=['recompute']" in report.culprit.remedy


class CountsGlobally(Layer):
    """The second call of a forward saves one tensor more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return torch.sigmoid(torch.sin(y)) if PHASE["scale"] > 2 else torch.sigmoid(y)


def test_a_recomputation_that_saves_other_tensors_is_named() -> None:
    report = check(WritesGlobal(CountsGlobally()))
    assert report.culprit is not None
    assert (report.culprit.feature, report.culprit.block) == ("recompute", "layers.1")
    assert "error" in verdicts(report).values() or "different" in verdicts(report).values()


def scales_in_forward(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * PHASE["scale"]


def test_a_hook_that_changes_outputs_otherwise_in_backward_is_named() -> None:
    model = WritesGlobal()
    model.up(2).register_forward_hook(scales_in_forward)
    model.up(0).register_forward_hook(lambda module, args, output: output * 2)
    report = check(model)
    assert report.culprit is not None
    assert report.culprit.feature == "recompute"
    assert report.culprit.part == "hook scales_in_forward on layers.2.up"
    assert report.culprit.block == "layers.2"
    assert "the same without hook scales_in_forward on layers.2.up" in verdicts(report)
    hooks = model.up(2)._forward_hooks
    assert list(hooks.values()) == [scales_in_forward]  # It is there again.


class Stash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x.detach().clone()
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * torch.cos(ctx.kept)


class Stashes(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(Stash.apply(x))


def test_tensors_that_a_function_keeps_on_ctx_are_a_warning_for_results_are_equal() -> None:
    report = check(Stack(Stashes()))
    assert report.ok
    (warning,) = report.warnings
    assert (warning.feature, warning.block) == ("memory", "layers.1")
    assert warning.part == "ctx.kept of Stash"
    assert warning.why.startswith(f"{64 * HIDDEN * 4} bytes stay")
    assert "save_for_backward" in str(report)


class OwnNoise(nn.Module):
    """A generator that nobody rewinds."""

    def __init__(self) -> None:
        super().__init__()
        self.source = random.Random(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + self.source.random())


class Noisy(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.noise = OwnNoise()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.noise(super().forward(x))


def test_what_is_not_repeatable_by_itself_is_named_without_blaming_a_feature() -> None:
    report = check(Stack(Noisy()))
    assert report.culprit is not None
    assert report.culprit.feature == "plain run"
    assert report.culprit.part == "module layers.1.noise"
    assert report.culprit.block == "layers.1"
    assert verdicts(report) == {"plain": "equal", "plain, again": "different"}


class Offloads(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return super().forward(x)


def test_an_offloader_in_a_block_conflicts_with_the_hooks_themselves() -> None:
    report = check(Stack(Offloads()))
    assert report.culprit is not None
    assert report.culprit.feature == "saved-tensor hooks"
    assert "save_on_cpu was entered in layers.1" in report.culprit.why
    assert verdicts(report)["no feature, hooks only"] == "error"


class Checkpoints(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)
        return F.relu(y)


def test_what_the_profile_refuses_is_said_in_its_words() -> None:
    report = check(Stack(Checkpoints()))
    assert report.culprit is not None
    assert report.culprit.feature == "profile"
    assert "layers.1 calls torch.utils.checkpoint" in report.culprit.why
    assert check(Stack(Checkpoints()), allow_checkpointing=True).ok


class Broken(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such expert")


def test_a_model_that_does_not_run_is_not_blamed_on_hyperframes() -> None:
    report = check(Stack(Broken()))
    assert report.culprit is not None
    assert (report.culprit.feature, report.culprit.part) == ("plain run", "ValueError")
    assert "HyperFrames is not involved" in str(report)


def test_the_smallest_failing_subset_is_found_whatever_its_size() -> None:
    tried: list[Sequence[int]] = []

    def both(chosen: Sequence[int]) -> bool:
        tried.append(chosen)
        return 3 in chosen and 12 in chosen

    assert minimal(range(16), both) == [3, 12]
    assert minimal(range(16), lambda chosen: 9 in chosen) == [9]
    assert minimal(range(5), lambda chosen: len(chosen) == 5) == [0, 1, 2, 3, 4]
    assert len(tried) < 80


class MindsAutocast(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(super().forward(x))
        return torch.tanh(y * PHASE["scale"]) if torch.is_autocast_enabled("cpu") else y


def test_autocast_is_left_out_and_named_where_results_are_equal_without_it() -> None:
    report = check(WritesGlobal(MindsAutocast()), dtype=torch.bfloat16)
    assert report.culprit is not None
    assert (report.culprit.feature, report.culprit.part) == ("recompute", "autocast")
    assert report.culprit.block == "layers.1"


class DropsByGlobal(nn.Dropout):
    """Drops with a probability that changes between forward and backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.p / 2 if PHASE["scale"] > 2 else self.p, self.training)


class Drops(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.drop = DropsByGlobal(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(super().forward(x))


def test_a_dropout_that_is_replayed_otherwise_is_named() -> None:
    report = check(WritesGlobal(Drops()))
    assert report.culprit is not None
    assert (report.culprit.feature, report.culprit.part) == ("recompute", "dropout layers.1.drop")


def test_suspects_are_back_in_their_order_after_they_were_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.3))
    model[1].compile(backend="eager")
    compiled = model[1]._compiled_call_impl
    seen: list[str] = []
    for word in "abc":
        model[0].register_forward_hook(lambda *_, word=word: seen.append(word))
    found = suspects(model)
    assert [suspect.name for suspect in found[3:]] == [
        "in-place module 1",
        "torch.compile on 1",
        "dropout 2",
    ]
    with all_off([found[1], *found[3:]]):
        model[0](torch.ones(4))
        assert seen == ["a", "c"]
        assert model[2].p == 0 and not model[1].inplace
        assert model[1]._compiled_call_impl is None
    model[0](torch.ones(4))
    assert seen == ["a", "c", "a", "b", "c"]
    assert model[2].p == 0.3 and model[1].inplace
    assert model[1]._compiled_call_impl is compiled


def test_each_feature_is_at_work_in_the_run_that_shows_it() -> None:
    """Or "equal" would say nothing."""
    bench_report: list[dict[str, Any]] = []
    original = hf.Session.__exit__

    def noting(self: hf.Session, *failure: Any) -> None:
        original(self, *failure)
        bench_report.append(self.stats())

    hf.Session.__exit__ = noting  # type: ignore[method-assign]
    try:
        assert check(Stack()).ok
    finally:
        hf.Session.__exit__ = original  # type: ignore[method-assign]
    again, cheap, moved, at_once = bench_report[4:]
    # The first block's input stays, for the caller holds it.
    assert again["recomputed_blocks"] == 4 * 2
    # The first layer has no operator that a recomputation needs.
    assert cheap["recomputed_blocks"] == 4 * 2 and cheap["selective_blocks"] == 3 * 2
    assert cheap["selective_served"] >= 3 * 2
    assert moved["peer_bytes"] > 0 and moved["host_bytes"] > 0
    assert at_once["engine"]["bytes_out"] == moved["engine"]["bytes_out"]
    assert moved["overflowed_storages"] == 0 and moved["engine"]["prefetch_hits"] > 0
