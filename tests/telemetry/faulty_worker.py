"""A worker that is well, or ill in one way: what the telemetry tests run as jobs.

python faulty_worker.py WAY

steps      puts a frame, fetches it again in time, drops it: a training loop in small
full       leases nearly everything that its neighbour may lend, and holds it
overflows  puts more frames than its lease has room for
leaks      steps go on, and frames pile up that nobody drops
dies       begins a checkpoint and is gone before it has written anything
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

from lease_holder import TIERS, NativeClient, engine_on_leases

MIB = 2**20
PAUSE_S = 0.2
COMPUTE_S = 0.5
LEAKED_BYTES = 128 * MIB


class Way(NamedTuple):
    blocks: int
    storage_bytes: int
    budget: int


# Of those that go on until they are ended.
WAYS = {
    "steps": Way(8, MIB, 4 * MIB),
    "full": Way(64, 4 * MIB, 12 * MIB),
    "overflows": Way(8, MIB, 4 * MIB),
    "leaks": Way(48, 4 * MIB, 12 * MIB),
}


class Frames:
    """One lease and an engine on it."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.engine, leases = engine_on_leases(*way)
        self.lease = max(leases, key=lambda lease: lease["bytes"])
        self._source = ctypes.create_string_buffer(os.urandom(1024), way.storage_bytes)
        self._target = ctypes.create_string_buffer(way.storage_bytes)
        self._steps = 0

    def put(self, block: int) -> int:
        """Its source is free again when this returns."""
        handle = self.begin_put(block)
        self.engine.take_releasable(0, 0)
        return handle

    def begin_put(self, block: int) -> int:
        placed = self.engine.put(
            0, block, 0, ctypes.addressof(self._source), self.way.storage_bytes,
            TIERS[self.lease["tier"]], self.lease["device"], -1, 0,
        )  # fmt: skip
        return placed.handle

    def round_trip(self) -> None:
        """Out during a forward, back ahead of use: on a good link both are over in time."""
        handle = self.begin_put(0)
        time.sleep(COMPUTE_S)
        self.engine.take_releasable(0, 0)
        self.engine.fetch(handle, ctypes.addressof(self._target), True, 0)
        time.sleep(COMPUTE_S)
        self.engine.wait(handle, 0)
        self.engine.drop(handle)
        self.engine.quiesce()

    def step_ended(self) -> None:
        self._steps += 1
        self.engine.report(self._steps, 0, 0, 0, 0)


def steps(frames: Frames) -> Iterator[None]:
    while True:
        frames.round_trip()
        yield


def full(frames: Frames) -> Iterator[None]:
    while True:
        time.sleep(PAUSE_S)
        yield


def overflows(frames: Frames) -> Iterator[None]:
    room = frames.lease["bytes"] // frames.way.storage_bytes
    while True:
        handles = [frames.put(block) for block in range(room + 2)]
        time.sleep(PAUSE_S)
        for handle in handles:
            frames.engine.drop(handle)
        frames.engine.quiesce()
        yield


def leaks(frames: Frames) -> Iterator[None]:
    leaked = 0
    while True:
        if leaked < LEAKED_BYTES:
            frames.put(leaked // frames.way.storage_bytes)
            leaked += frames.way.storage_bytes
        time.sleep(PAUSE_S / 2)
        yield


def checkpoint(dies: bool) -> None:
    """One step's checkpoint as a rank that is alone makes it; or only its begin."""
    client = NativeClient(os.environ["HYPERFRAMES_COORDINATOR"], {})
    caller = {
        "version": {"major": 1, "minor": 0},
        "job_id": os.environ["HYPERFRAMES_JOB_ID"],
        "job_token": os.environ["HYPERFRAMES_JOB_TOKEN"],
        "rank": 0,
        "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    }
    begin = {
        "caller": caller,
        "directory": f"{os.getcwd()}/{os.environ['HYPERFRAMES_JOB_ID']}",
        "name": "step-00000001",
        "global_step": 1,
        "superframe_id": 1,
        "world_size": 1,
        "topology_hash": "0" * 64,
    }
    checkpoint_id = client.call("BeginCheckpoint", begin, 10.0)["id"]
    if dies:
        os._exit(1)
    shard = {"rank": 0, "bytes": 1, "digest": "0" * 64, "micro_batches": [0]}
    call = {"caller": caller, "checkpoint_id": checkpoint_id}
    client.call("PrepareCheckpoint", {**call, "shard": shard}, 10.0)
    client.call("CommitCheckpoint", call, 10.0)


def main() -> None:
    way = sys.argv[1]
    if way in ("saves", "dies"):
        checkpoint(dies=way == "dies")
        return
    frames = Frames(WAYS[way])
    for _ in {"steps": steps, "full": full, "overflows": overflows, "leaks": leaks}[way](frames):
        frames.step_ended()


if __name__ == "__main__":
    main()
