"""What the example measures about itself: activations, the process's own memory, time, digests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn

# A downsampled curve has at most this many points; every bucket keeps its highest one.
CURVE_POINTS = 400


@dataclass
class StepRecord:
    """One step. Bytes and seconds."""

    micro_batch: int = 0  # Its number in the training, restarts included.
    loss: float = 0.0
    gradients: str = ""  # sha256 over all gradients, in the order of named_parameters.
    seconds: float = 0.0
    activation_peak: int = 0  # As hf.ActivationMeter counts it.
    anonymous_start: int = 0  # RssAnon of /proc/self/status when the step began.
    anonymous_peak: int = 0

    def as_json(self) -> dict[str, Any]:
        return {**self.__dict__, "loss_hex": self.loss.hex()}


def anonymous_bytes() -> int:
    """This process's private memory. Lent memory (memfd) counts as shared and is not in it."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon line: Linux 4.5 or newer is needed")


class AnonymousPeak:
    """Samples RssAnon on a thread while it is entered."""

    def __init__(self, interval_s: float = 0.002) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self.start = self.peak = 0

    def __enter__(self) -> AnonymousPeak:
        self.start = self.peak = anonymous_bytes()
        self._thread = threading.Thread(target=self._sample, name="anonymous-peak", daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.peak = max(self.peak, anonymous_bytes())

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, anonymous_bytes())


def gradient_digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        # Wrappers prefix names; the digest must not depend on them.
        digest.update(name.rsplit("module.", 1)[-1].encode())
        if parameter.grad is not None:
            values = parameter.grad.contiguous().view(-1).view(torch.uint8)
            digest.update(values.numpy().tobytes())
    return digest.hexdigest()


@dataclass
class Measurements:
    """Collects a record per step, and one step's curve."""

    meter: Any  # hf.ActivationMeter, entered by the caller.
    steps: list[StepRecord] = field(default_factory=list)
    curve: list[tuple[float, int]] = field(default_factory=list)

    @contextlib.contextmanager
    def step(self) -> Iterator[StepRecord]:
        record = StepRecord()
        with AnonymousPeak() as own:
            started = time.perf_counter()
            yield record
            record.seconds = time.perf_counter() - started
        record.activation_peak = int(self.meter.step_peak)
        record.anonymous_start, record.anonymous_peak = own.start, own.peak
        self.steps.append(record)

    def state_dict(self) -> dict[str, Any]:
        """The records, for a checkpoint: a resumed run then reports all of its steps."""
        return {"steps": [dict(record.__dict__) for record in self.steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What an earlier start of the same training had recorded."""
        self.steps = [StepRecord(**record) for record in state["steps"]]

    @contextlib.contextmanager
    def profiled(self, enabled: bool) -> Iterator[None]:
        """The allocator's own account of what happens inside, as (seconds, bytes) pairs."""
        if not enabled:
            yield
            return
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        ) as profiler:
            yield
        self.curve = _curve_of(profiler)


def _curve_of(profiler: torch.profiler.profile) -> list[tuple[float, int]]:
    descriptor, name = tempfile.mkstemp(suffix=".json")
    os.close(descriptor)
    try:
        profiler.export_chrome_trace(name)
        events = json.loads(Path(name).read_text())["traceEvents"]
    finally:
        os.unlink(name)
    # Single changes of the CPU allocator; the running sum starts at the profile's start.
    changes = sorted(
        (event["ts"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == "[memory]" and event["args"].get("Device Type") == 0
    )
    points: list[tuple[float, int]] = []
    total = 0
    for timestamp, change in changes:
        total += change
        points.append(((timestamp - changes[0][0]) / 1e6, total))
    return downsample(points, CURVE_POINTS)


def downsample(points: list[tuple[float, int]], limit: int) -> list[tuple[float, int]]:
    """At most `limit` points: the highest of each of `limit` equal stretches of time."""
    if len(points) <= limit:
        return points
    first, last = points[0][0], points[-1][0]
    width = (last - first) / limit or 1.0
    highest: dict[int, tuple[float, int]] = {}
    for point in points:
        bucket = min(int((point[0] - first) / width), limit - 1)
        if bucket not in highest or point[1] > highest[bucket][1]:
            highest[bucket] = point
    return [highest[bucket] for bucket in sorted(highest)]
