"""hf.compare on real runs: three modes proved equal, everything put back, each trouble named."""

from __future__ import annotations

import copy
import ctypes
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperframes as hf
from cases.fake_engine import FakeBackend, FakeEngine
from cases.framing import peer
from cases.small_gpt import GPT, batch, loss_of, make_gpt
from hyperframes._preserve import same_bits

IDS, TARGETS = batch(0)


@pytest.fixture(autouse=True)
def two_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 1GiB")
    monkeypatch.setenv("HYPERFRAMES_PROGRESS", "off")


def loss(output: torch.Tensor) -> torch.Tensor:
    return loss_of(output, TARGETS)


def compare(model: nn.Module, **options: Any) -> hf.Comparison:
    options.setdefault("activation_budget", "1500KiB")
    options.setdefault("steps", 3)
    return hf.compare(model, IDS, loss_fn=options.pop("loss_fn", loss), **options)


def causes(comparison: hf.Comparison) -> list[str]:
    return [finding.cause for finding in comparison.findings]


def test_three_modes_are_bit_equal_and_their_costs_stand_in_one_table() -> None:
    model = make_gpt(dropout=0.1)
    found = compare(model, optimizer=torch.optim.AdamW(model.parameters()))
    nothing, checkpoint, frames = (found.row(m) for m in ("nothing", "checkpoint", "hyperframes"))
    assert [row.verdict for row in found.rows] == ["reference", "bit-equal", "bit-equal"]
    assert checkpoint.peak_bytes < nothing.peak_bytes
    assert frames.peak_bytes <= 1500 << 10 < nothing.peak_bytes
    assert checkpoint.recomputed_bytes > 0 == nothing.recomputed_bytes
    assert sum(frames.moved_bytes.values()) + frames.recomputed_bytes > 1 << 20
    assert all(len(row.steps_s) == 3 and row.per_second > 0 for row in found.rows)
    assert all(row.jitter >= 1 for row in found.rows)
    assert found.unit == "tokens"
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["mode", *("nothing", "checkpoint"),
                                                      "hyperframes"]  # fmt: skip
    assert any(line.startswith("Diagnosis:") for line in lines)


class Everything(nn.Module):
    """Parameters, a tied one, a BatchNorm's buffers, dropout, NumPy-free random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.2)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * (1 + random.random() * 1e-3)
        return x


def test_model_optimizer_gradients_buffers_and_random_states_are_as_before() -> None:
    torch.manual_seed(3)
    model = Everything()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(32, 64)
    model(x).square().mean().backward()
    optimizer.step()
    gradients = [p.grad for p in model.parameters()]
    before: dict[str, Any] = {
        "model": copy.deepcopy(model.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "gradients": [g.clone() for g in gradients if g is not None],
    }
    states = torch.get_rng_state(), random.getstate()
    hf.compare(
        model, x, loss_fn=lambda y: y.square().mean(), optimizer=optimizer, steps=2,
        activation_budget="1GiB",
    )  # fmt: skip
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    after = model.state_dict()
    assert all(same_bits(after[name], value) for name, value in before["model"].items())
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    now = [g for g in gradients if g is not None]
    assert all(same_bits(a, b) for a, b in zip(now, before["gradients"], strict=True))
    state, old = optimizer.state_dict(), before["optimizer"]
    assert state["param_groups"] == old["param_groups"]
    for key, values in old["state"].items():
        assert all(same_bits(state["state"][key][name], value) for name, value in values.items())


def test_an_optimizer_that_never_stepped_has_no_state_afterwards() -> None:
    model = make_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    weights = [p.detach().clone() for p in model.parameters()]
    compare(model, optimizer=optimizer, steps=1, modes=["nothing", "hyperframes"])
    assert not optimizer.state
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_a_slow_link_is_named_with_what_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 1GiB@peer=4MB,host=10MB")
    modes = ["nothing", "hyperframes"]
    found = compare(make_gpt(), forbid=["recompute", "host"], modes=modes, steps=1)
    (finding,) = [f for f in found.findings if f.subject == "speed"]
    assert finding.cause == "slow-link"
    assert "peer link" in finding.what and "SIM-local-1" in finding.what
    assert "measured" in str(finding) and "promised to the plan" in str(finding)


class Hoarder(GPT):
    """Keeps what a layer saved for backward in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.blocks[1].up.register_forward_hook(self._keep)  # type: ignore[union-attr]

    def _keep(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        self.kept[:] = [output]


def test_t18_a_model_that_keeps_its_activations_is_told_which_and_in_what() -> None:
    torch.manual_seed(0)
    found = compare(Hoarder(), _backend=FakeBackend(peer))
    (finding,) = [f for f in found.findings if f.cause == "held"]
    (line,) = finding.evidence
    nbytes = 2 * 64 * 4 * 64 * 4
    assert line.startswith("blocks.1 storage ")
    assert "(float32 2x64x256): 128KiB" in line and nbytes == 128 << 10
    assert "a list with 1 elements, attribute 'kept' of module Hoarder" in line
    freed = (found.row("hyperframes").moved_bytes["peer"] - nbytes) / 1024
    assert "really were" in finding.what and freed > 0


HOARD: list[torch.Tensor] = []


def test_t18_what_the_loss_keeps_in_a_global_list_is_found_there() -> None:
    def keeping(output: torch.Tensor) -> torch.Tensor:
        scores = torch.log_softmax(output, dim=-1)
        HOARD[:] = [scores]
        return F.nll_loss(scores.flatten(0, 1), TARGETS.flatten())

    try:
        found = compare(make_gpt(), loss_fn=keeping, _backend=FakeBackend(peer))
    finally:
        HOARD.clear()
    (finding,) = [f for f in found.findings if f.cause == "held"]
    assert "'HOARD'" in str(finding)


def keeper() -> Any:
    last: torch.Tensor | None = None

    def keep(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        nonlocal last
        last = output

    return keep


def test_t18_a_variable_of_a_closure_is_found() -> None:
    model = make_gpt()
    model.blocks[2].up.register_forward_hook(keeper())  # type: ignore[union-attr]
    found = compare(model, _backend=FakeBackend(peer))
    (finding,) = [f for f in found.findings if f.cause == "held"]
    assert "variable 'last' in the closure of keeper.<locals>.keep" in str(finding)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


class LateBackend(FakeBackend):
    """Every fourth step one reload takes 80 ms more, by the clock that the comparison reads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(peer)
        self.clock = clock

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> FakeEngine:
        engine = LateEngine(self.clock)
        self.engines.append(engine)
        return engine


class LateEngine(FakeEngine):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.late: set[int] = set()

    def put(self, micro_batch: int, block: int, ordinal: int, *rest: Any) -> Any:
        placed = super().put(micro_batch, block, ordinal, *rest)
        if self.puts[1] % 5 == 0 and self.quiesced % 4 == 0 and not self.late & set(self.slots):
            self.late.add(placed.handle)
        return placed

    def wait(self, handle: int, stream: int) -> None:
        super().wait(handle, stream)
        self.clock.now += 0.08 if handle in self.late else 0.001


def test_a_periodic_stall_names_the_frame_the_link_and_the_steps() -> None:
    clock = Clock()
    found = compare(
        make_gpt(), steps=12, _backend=LateBackend(clock), _clock=clock,
        modes=["nothing", "hyperframes"],
    )  # fmt: skip
    (finding,) = [f for f in found.findings if f.subject == "stalls"]
    assert finding.cause == "frame"
    assert "every 4 steps" in finding.what
    assert "peer link peer-device -> SIM-test-0" in finding.what
    assert "reload of " in finding.what
    assert "of 12" in str(finding)


class LaggingEngine(FakeEngine):
    """Every copy takes 4 ms, however small; the counters say so as the real engine's do."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.bytes_in = 0
        self.waits = 0

    def wait(self, handle: int, stream: int) -> None:
        super().wait(handle, stream)
        self.clock.now += 0.004
        self.waits += 1
        self.bytes_in += self.sizes[handle]

    def stats(self) -> dict[str, Any]:
        lane = {"keep": 0, "peer": 0.004 * self.waits, "host": 0}
        return {
            **super().stats(),
            "bytes_in": {"keep": 0, "peer": self.bytes_in, "host": 0},
            "puts": {"keep": 0, "peer": self.puts[1], "host": 0},
            "fetches": self.waits,
            "exposed_wait": 0.004 * self.waits,
            "copy_busy": {"in": lane, "out": {"peer": 0.0001 * self.waits}},
        }


class LaggingBackend(FakeBackend):
    def __init__(self, clock: Clock) -> None:
        super().__init__(peer)
        self.clock = clock

    def describe(self) -> dict[str, Any]:
        link = {"from": "peer-device", "to": "SIM-test-0", "bytes_per_second": 1e9}
        return {"devices": [], "links": [{**link, "latency_s": 0.004}]}

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> FakeEngine:
        self.engines.append(LaggingEngine(self.clock))
        return self.engines[-1]


def test_frames_too_small_for_the_latency_are_named() -> None:
    clock = Clock()
    found = compare(
        make_gpt(), _backend=LaggingBackend(clock), _clock=clock, modes=["nothing", "hyperframes"]
    )
    (finding,) = [f for f in found.findings if f.subject == "speed"]
    assert finding.cause == "tiny-frames"
    assert "peer link peer-device -> SIM-test-0" in finding.what
    assert "latency of 4.0 ms" in finding.what and "latency alone is" in str(finding)


class FlippingEngine(FakeEngine):
    """One bit of one reload is wrong."""

    def wait(self, handle: int, stream: int) -> None:
        destination = self.destinations[handle]
        super().wait(handle, stream)
        if handle == 7:
            byte = ctypes.c_ubyte.from_address(destination + 3)
            byte.value ^= 0x40


class FlippingBackend(FakeBackend):
    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> FakeEngine:
        self.engines.append(FlippingEngine())
        return self.engines[-1]


def test_a_mode_that_computes_something_else_is_an_error_and_no_row() -> None:
    model = make_gpt()
    weights = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(hf.ResultsDiffer, match="hyperframes does not compute what nothing") as seen:
        compare(model, _backend=FlippingBackend(peer))
    assert "gradient of" in str(seen.value)
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))


class TooLarge(GPT):
    """Fits only where its blocks are replaced by others."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if "forward" not in self.blocks[0].__dict__:
            raise torch.cuda.OutOfMemoryError("tried to allocate 9.00 GiB")
        return super().forward(ids)


def test_a_mode_that_runs_out_of_memory_is_a_row_that_says_so() -> None:
    torch.manual_seed(0)
    found = compare(TooLarge())
    assert [row.verdict for row in found.rows] == ["out of memory", "reference", "bit-equal"]
    assert "nothing, out of memory: tried to allocate 9.00 GiB" in str(found)


def test_a_budget_that_no_plan_keeps_is_a_row_with_the_smallest_that_works() -> None:
    found = compare(make_gpt(), activation_budget="1KiB", steps=1)
    assert found.row("hyperframes").verdict == "does not fit"
    assert "smallest activation_budget that works" in str(found)
    assert "only of modes that ran" in str(found)


class Counting(GPT):
    calls = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        Counting.calls += 1
        return super().forward(ids) * (1 + Counting.calls)


def test_a_model_that_differs_from_itself_is_refused_before_anything_is_timed() -> None:
    torch.manual_seed(0)
    with pytest.raises(hf.FailedPrecondition, match=r"when it is run again.*loss: differs"):
        compare(Counting())


def test_a_budget_that_asks_for_nothing_is_said_to() -> None:
    found = compare(make_gpt(), activation_budget="1GiB")
    assert causes(found) == ["budget"] or "budget" in causes(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modes": ["plain"]}, r"modes=\['plain'\]: choose among nothing"),
        ({"modes": []}, "choose among"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(hf.InvalidArgument, match=words):
        compare(make_gpt(), **options)


def test_equal_means_to_the_last_bit() -> None:
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(None, nan) and same_bits(None, None)
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
