"""The pre-flight on real groups, and on what stands for the real libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from hyperframes._ring import _Awaited, _Polled
from process_groups import run_two_ranks

PACKAGE = Path(__file__).resolve().parents[1]


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
        "HYPERFRAMES_FAKE_GPUS": "2,nvlinks",
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
    lines, said = run_two_ranks(RANK, environment={"HYPERFRAMES_HOST_DEVICES": devices})
    return [line for line in lines if line.split(" ")[0] in ("loss", "unfit", "kept")], said


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
