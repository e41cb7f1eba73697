"""Before the first step of several ranks: collectives against what is promised, doing no harm."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperframes import _preflight
from hyperframes._backend import EmbeddedBackend
from hyperframes._preflight import ENOUGH, LARGEST, LIMIT_S, PATIENCE_S, SMALLEST, judged, measure
from hyperframes._ring import Pending, _Awaited, _Polled

PACKAGE = Path(__file__).resolve().parents[1]
GPUS = ["SIM-local-0", "SIM-local-1"]
PROMISING = "2 x 64MiB@collective-promise=100GB"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Work:
    """Done once so many seconds of the clock have passed."""

    def __init__(self, clock: Clock, seconds: float, agreed: Sequence[float] = ()) -> None:
        self._clock = clock
        self._left = seconds
        self._agreed = list(agreed)

    def wait(self, seconds: float | None) -> bool:
        step = self._left if seconds is None else min(self._left, seconds)
        self._clock.now += step
        self._left -= step
        return self._left <= 0

    def values(self) -> list[float]:
        assert self._left <= 0, "read before it was done"
        return self._agreed


Cost = Callable[[str, int], float]  # Seconds of a collective with so many bytes.


def at(bytes_per_second: float, latency_s: float = 50e-6) -> Cost:
    return lambda kind, nbytes: latency_s + nbytes / bytes_per_second


class FakeRing:
    """Of several ranks one: the others are as fast, or take `others` seconds at the least."""

    def __init__(self, clock: Clock, cost: Cost, *, rank: int = 0, size: int = 2) -> None:
        self.clock, self.cost, self.rank, self.size = clock, cost, rank, size
        self.others: Cost = lambda kind, nbytes: 0.0
        self.begun: list[tuple[str, int]] = []
        self.verdict_of_first: list[Any] = []  # What rank 0 tells the others, where it is not us.
        self._slowest = 0.0

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def first(self, value: Any) -> Any:
        return value if self.rank == 0 else self.verdict_of_first.pop(0)

    def agree(self, values: Sequence[float]) -> Pending:
        own, elapsed = values
        return Work(self.clock, 0.0, [max(own, self._slowest), elapsed])

    def all_reduce(self, nbytes: int) -> Pending:
        return self._begin("all-reduce", nbytes)

    def send_receive(self, nbytes: int) -> Pending:
        return self._begin("send-receive", nbytes)

    def _begin(self, kind: str, nbytes: int) -> Pending:
        self.begun.append((kind, nbytes))
        self._slowest = self.others(kind, nbytes)
        return Work(self.clock, self.cost(kind, nbytes))


def never(*what: Any) -> None:
    raise AssertionError(f"failed: {what}")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> EmbeddedBackend:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", PROMISING)
    return EmbeddedBackend(torch.device("cpu"))


def test_bus_bandwidth_is_what_nccl_tests_call_so(backend: EmbeddedBackend) -> None:
    clock = Clock()
    ring = FakeRing(clock, at(LARGEST / 0.004, latency_s=0), size=4)
    verdict = judged(backend, ring, GPUS * 2, clock)
    speeds = verdict["bus_bytes_per_second"]
    assert speeds["all-reduce"] == pytest.approx(LARGEST / 0.004 * 2 * 3 / 4)
    assert speeds["send-receive"] == pytest.approx(LARGEST / 0.004)
    assert verdict["promised_bytes_per_second"] == 100e9


def test_the_slowest_rank_counts_and_of_the_rounds_the_best() -> None:
    clock = Clock()
    ring = FakeRing(clock, at(400e9))
    turns = iter(range(1000))

    def others(kind: str, nbytes: int) -> float:
        return 0.2 if next(turns) % 3 == 0 else 0.01  # A hiccup now and then.

    ring.others = others
    found = {one.kind: one for one in measure(ring, clock, never)}
    assert found["all-reduce"].seconds == 0.01
    assert found["send-receive"].seconds == 0.01
    assert found["all-reduce"].bytes == LARGEST


def test_little_is_enough_of_a_slow_link_and_the_time_is_kept() -> None:
    clock = Clock()
    began = clock.now
    ring = FakeRing(clock, at(10e6))  # The largest would take 3.4 s.
    found = measure(ring, clock, never)
    assert [one.kind for one in found] == ["all-reduce", "send-receive"]
    assert all(one.bytes < ENOUGH for one in found)
    assert all(one.bytes / one.seconds == pytest.approx(10e6, rel=0.01) for one in found)
    assert clock.now - began <= LIMIT_S


@pytest.mark.parametrize("speed", [1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12])
def test_whatever_the_speed_it_is_over_in_under_three_seconds(speed: float) -> None:
    clock = Clock()
    began = clock.now

    ring = FakeRing(clock, at(speed))
    found = measure(ring, clock, never)
    assert clock.now - began < 3.0
    assert [one.bytes / one.seconds for one in found] == [pytest.approx(speed, rel=0.7)] * 2
    assert sum(nbytes for _, nbytes in ring.begun) <= 256 << 20


def test_where_connecting_takes_the_time_few_bytes_are_not_taken_for_a_slow_link() -> None:
    clock = Clock()
    ring = FakeRing(clock, at(20e9, latency_s=0.0005))
    slow_start = {"all-reduce": 1.2485, "send-receive": 0.0}
    fast = ring.cost

    def cost(kind: str, nbytes: int) -> float:
        return slow_start.pop(kind, 0.0) + fast(kind, nbytes)

    ring.cost = cost
    found = measure(ring, clock, never)
    assert ("all-reduce", SMALLEST) in ring.begun[1:], "it was measured with a little"
    assert [(one.kind, one.bytes) for one in found] == [("send-receive", LARGEST)]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_not_done_in_time_is_told_of_once_by_rank_0_and_waited_for(
    backend: EmbeddedBackend, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    clock = Clock()
    ring = FakeRing(clock, at(100e9), rank=rank)
    hanging = ["all-reduce", "send-receive"]
    fast = ring.cost

    def cost(kind: str, nbytes: int) -> float:
        if kind in hanging:
            hanging.remove(kind)
            return 40.0
        return fast(kind, nbytes)

    ring.cost = cost
    ring.verdict_of_first = [True, {}]
    assert judged(backend, ring, GPUS, clock) == {}
    assert clock.now >= 180.0, "both were waited for: what comes after them would have been blocked"
    assert ring.begun == [("all-reduce", SMALLEST), ("send-receive", SMALLEST)]
    said = capsys.readouterr().err
    if rank == 0:
        assert said.startswith(f"HyperFrames: all-reduce of 2 ranks: not done {PATIENCE_S:.1f} s")
        assert "HYPERFRAMES_HOST_DEVICES" in said and said.count("It is waited for") == 1
        assert said.count("\n") == 1
    else:
        assert said == ""


def test_below_a_tenth_rank_0_alone_says_to_leave_hyperframes_off(
    backend: EmbeddedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()

    def cost(kind: str, nbytes: int) -> float:
        return nbytes / (9e9 if kind == "all-reduce" else 11e9)

    verdict = judged(backend, FakeRing(clock, cost), GPUS, clock)
    assert [unfit["kind"] for unfit in verdict["unfit"]] == ["all-reduce"]
    said = capsys.readouterr().err
    assert said.startswith(
        "HyperFrames: leave HyperFrames off: all-reduce SIM-local-0 -> SIM-local-1: 9.0GB/s, "
        "promised 100GB/s (HYPERFRAMES_HOST_DEVICES); the simulated link"
    )
    assert said.count("\n") == 1

    other = FakeRing(clock, cost, rank=1)
    other.verdict_of_first = [True, verdict]
    assert judged(backend, other, GPUS, clock) == verdict
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("devices", ["2 x 64MiB", "SIM-local-0=1GiB@collective-promise=1TB"])
def test_where_nothing_is_promised_nothing_is_measured_or_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], devices: str
) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", devices)
    clock = Clock()
    ring = FakeRing(clock, at(1e6))
    assert judged(EmbeddedBackend(torch.device("cpu")), ring, GPUS, clock) == {}
    assert ring.begun == []
    assert capsys.readouterr().err == ""


def test_an_error_is_told_with_its_likely_cause_and_raised(
    backend: EmbeddedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    ring = FakeRing(clock, at(1e9))

    def broken(kind: str, nbytes: int) -> float:
        raise RuntimeError("unhandled system error")

    ring.cost = broken
    with pytest.raises(RuntimeError, match="unhandled system error"):
        judged(backend, ring, GPUS, clock)
    said = capsys.readouterr().err
    assert "leave HyperFrames off: all-reduce SIM-local-0 -> SIM-local-1: no way" in said
    assert "unhandled system error, perhaps because" in said


class NcclWork:
    """Like NCCL's: wait() orders streams and never holds up the caller, nor tells of the end."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.ordered = 0

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self) -> None:
        assert self.looks < 0, "it was waited for before its end: the stream would be held up"
        self.ordered += 1


def test_what_nccl_runs_is_looked_at_until_it_is_done_and_orders_the_stream_then() -> None:
    works = [NcclWork(3), NcclWork(0)]
    pending = _Polled(works, torch.tensor([1.5, 2.0], dtype=torch.float64))
    assert not pending.wait(0.0)
    assert [work.ordered for work in works] == [0, 0]
    assert pending.wait(None)
    assert [work.ordered for work in works] == [1, 1]
    assert pending.values() == [1.5, 2.0]


class GlooWork:
    """Like Gloo's sends: done in wait() alone, which ends when `go` says so."""

    def __init__(self, error: str = "") -> None:
        self.go = threading.Event()
        self._error = error

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        assert self.go.wait(100)
        if self._error:
            raise RuntimeError(self._error)


def test_what_gloo_runs_can_be_waited_for_in_vain_and_once_more() -> None:
    work = GlooWork()
    pending = _Awaited([work], None)
    assert not pending.wait(0.0)
    work.go.set()
    assert pending.wait(None)
    broken = GlooWork("Connection closed by peer")
    broken.go.set()
    with pytest.raises(RuntimeError, match="closed by peer"):
        _Awaited([broken], None).wait(None)


@dataclasses.dataclass(eq=False)
class Group:
    """Stands for a process group."""


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that rings were opened with; two ranks, as far as anybody can tell."""
    opened: list[int] = []
    clock = Clock()

    def open_ring(device: torch.device, nbytes: int) -> FakeRing:
        opened.append(nbytes)
        return FakeRing(clock, at(1e9))

    group = Group()
    monkeypatch.setattr(_preflight, "_group", lambda: group)
    monkeypatch.setattr(_preflight, "world_size", lambda: 2)
    monkeypatch.setattr(_preflight, "fits", lambda device: True)
    monkeypatch.setattr(_preflight, "gather", lambda value: [{**value, "gpu": gpu} for gpu in GPUS])
    monkeypatch.setattr(_preflight, "JobRing", open_ring)
    return opened


def test_it_is_measured_once_for_each_group(
    backend: EmbeddedBackend, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        _preflight.look_at_collectives(backend, 1 << 30)
    assert entered == [LARGEST]
    assert _preflight.verdict()["promised_by"] == "HYPERFRAMES_HOST_DEVICES"
    another = Group()
    monkeypatch.setattr(_preflight, "_group", lambda: another)
    assert _preflight.verdict() == {}
    _preflight.look_at_collectives(backend, 1 << 30)
    assert len(entered) == 2


def test_it_takes_no_memory_that_a_step_would_not_take(
    backend: EmbeddedBackend, entered: list[int]
) -> None:
    _preflight.look_at_collectives(backend, 2 * LARGEST - 1)
    assert entered == []
    assert _preflight.verdict() == {}


def test_one_rank_alone_costs_nothing(
    backend: EmbeddedBackend, entered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_preflight, "world_size", lambda: 1)
    _preflight.look_at_collectives(backend, 1 << 30)
    assert entered == []
    assert _preflight.verdict() == {}


FAKES = PACKAGE.parents[1] / "bazel-bin" / "agent" / "device" / "cuda" / "fake"

ON_GPUS = """
    import json
    from hyperframes import _native

    gpus = ["GPU-00000000-0000-0000-0000-00000000000%d" % number for number in (1, 2)]
    machine = _native.Machine({"backend": "cuda", "gpu_index": 0, "host_bytes": 0})
    measured = [
        {"kind": "all-reduce", "bytes": 1 << 25, "seconds": (1 << 25) / 40e9},
        {"kind": "send-receive", "bytes": 1 << 25, "seconds": (1 << 25) / 50e9},
    ]
    print(json.dumps(machine.judge_collectives({"gpus": gpus, "measured": measured})))
    far = [gpus[0], "GPU-on-another-node"]
    print(json.dumps(machine.judge_collectives({"gpus": far, "measured": measured})))
"""


@pytest.mark.skipif(
    not (FAKES / "libcuda.so.1").exists(),
    reason="built without a CUDA toolkit, or not built: bazel build //agent/device/cuda/fake",
)
def test_of_gpus_nvml_tells_what_is_promised() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE),
        "LD_LIBRARY_PATH": str(FAKES),
        "HYPERFRAMES_FAKE_GPUS": "2,linked",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ON_GPUS)],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    near, far = map(json.loads, done.stdout.splitlines())
    assert near["promised_bytes_per_second"] == 450e9
    (unfit,) = near["unfit"]
    assert unfit["kind"] == "all-reduce", "below a tenth; the other is a ninth"
    assert ": 40.0GB/s, promised 450GB/s (18 x NVLink 4); " in unfit["sentence"]
    assert far["promised_bytes_per_second"] == 0
    assert far["unfit"] == []


RANK = """
    import os, sys, weakref
    import torch, torch.distributed as dist
    from torch import nn
    import hyperframes as hf
    from hyperframes import _preflight, _ring
    from process_groups import leave_group

    _preflight.LIMIT_S = _preflight.PATIENCE_S = 60.0  # However slow this machine is.
    buffers = []
    real = _ring.JobRing.__init__
    def init(self, device, nbytes):
        real(self, device, nbytes)
        buffers.append(weakref.ref(self._buffer))
    _ring.JobRing.__init__ = init

    torch.set_num_threads(1)
    torch.manual_seed(7)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    layers = [nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    module = nn.Sequential(*layers)
    model = nn.parallel.DistributedDataParallel(module)
    x = torch.randn(16384, 128)
    def loss_of(out):
        return out.square().mean()
    profile = hf.profile(model, x, loss_fn=loss_of)
    torch.manual_seed(11)
    with hf.hyperframes(model, profile=profile, activation_budget="80MiB") as framed:
        for step in range(2):
            loss = loss_of(framed(x))
            loss.backward()
            total = sum(p.grad.double().sum() for p in module.parameters()).item()
            print("loss", rank, loss.item().hex(), total.hex())
        stats = hf.stats(framed)
    print("unfit", rank, [unfit["kind"] for unfit in stats["collectives"].get("unfit", ())])
    print("kept", rank, len(buffers), [b() is not None for b in buffers])
    leave_group()
"""


def two_ranks(devices: str) -> tuple[list[str], list[str]]:
    """What the ranks print, sorted; what each says on stderr."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PACKAGE}:{PACKAGE.parents[1] / 'tests'}",
        "HYPERFRAMES_HOST_DEVICES": devices,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RANK)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    lines: list[str] = []
    said: list[str] = []
    try:
        for worker in workers:
            out, errors = worker.communicate(timeout=100)
            assert worker.returncode == 0, errors[-3000:]
            lines += out.splitlines()
            said.append(errors)
    finally:
        for worker in workers:
            worker.kill()
    return sorted(line for line in lines if line.split(" ")[0] in ("loss", "unfit", "kept")), said


def test_two_ranks_are_told_of_an_unreachable_promise_and_train_with_the_same_bits() -> None:
    plain, quiet = two_ranks("2 x 1GiB")
    assert not any("leave HyperFrames off" in errors for errors in quiet)
    found, said = two_ranks("2 x 1GiB@collective-promise=100000GB")
    lines = [line for line in said[0].splitlines() if "leave HyperFrames off" in line]
    assert [line.split(" SIM")[0] for line in lines] == [
        "HyperFrames: leave HyperFrames off: all-reduce",
        "HyperFrames: leave HyperFrames off: send/recv",
    ]
    assert all("promised 100000GB/s (HYPERFRAMES_HOST_DEVICES)" in line for line in lines)
    assert "leave HyperFrames off" not in said[1]

    def of(lines: list[str], word: str) -> list[str]:
        return [line for line in lines if line.startswith(word)]

    assert len(of(plain, "loss")) == 4
    assert of(found, "loss") == of(plain, "loss")
    assert of(plain, "unfit") == ["unfit 0 []", "unfit 1 []"]
    assert of(found, "unfit") == [
        f"unfit {rank} ['all-reduce', 'send-receive']" for rank in range(2)
    ]
    assert of(plain, "kept") == ["kept 0 0 []", "kept 1 0 []"]
    assert of(found, "kept") == ["kept 0 1 [False]", "kept 1 1 [False]"]
