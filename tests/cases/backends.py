"""Backends of every case: the unkind double, and the real engine on simulated GPUs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from cases.fake_engine import FakeBackend, Rule
from cases.small_gpt import DEVICE
from hyperframes import _native

# Pinning takes time, and every case opens an engine.
LENT_BYTES = (256 if DEVICE.type == "cpu" else 16) << 20


@functools.lru_cache(maxsize=1)
def machine_on_gpus() -> tuple[_native.Machine, list[dict[str, Any]]]:
    machine = _native.Machine({"backend": "cuda", "gpu_index": 0})
    return machine, machine.describe()["devices"]


def simulated_machine() -> tuple[_native.Machine, list[dict[str, Any]]]:
    os.environ.setdefault("HYPERFRAMES_HOST_DEVICES", "2 x 1GiB")
    machine = _native.Machine({"backend": "host"})
    return machine, machine.describe()["devices"]


class RuleOnRealEngine(FakeBackend):
    """Tiers by rule, moved by the native engine between two GPUs and the host: simulated ones, or
    real ones (where there is only one, it lends to itself)."""

    def __init__(self, rule: Rule, *, verify: bool = True, chaos: dict[str, Any] | None = None):
        super().__init__(rule)
        on_gpu = DEVICE.type == "cuda"
        self._machine, devices = machine_on_gpus() if on_gpu else simulated_machine()
        self._peer = [d["uuid"] for d in devices if not d["is_host"]][:2][-1]
        self._host = next(d["uuid"] for d in devices if d["is_host"])
        self._gpu = devices[0]["uuid"]
        # On GPUs a checksum waits for every copy, and hides what a missing wait would do.
        self._verify = verify and not on_gpu
        self._chaos = chaos
        self.native: list[_native.NativeEngine] = []

    def plan(self, rank_problem: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        plan = super().plan(rank_problem, options)
        for block in plan["ranks"][0]["blocks"]:
            for storage in (*block["storages"], *block["selected"]):
                lender = {"peer-device": self._peer, "host-device": self._host}
                storage["device"] = lender.get(storage["device"], "")
        return plan

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Any:
        leases = [] if options.get("no_lenders") else [
            {"device": self._peer, "tier": "TIER_PEER", "bytes": LENT_BYTES},
            {"device": self._host, "tier": "TIER_HOST", "bytes": LENT_BYTES},
        ]  # fmt: skip
        values: dict[str, Any] = {
            "gpu": self._gpu,
            "stash_limit": 1 << 18,
            "prefetch_limit": 1 << 20,
            "verify": self._verify,
            "leases": leases,
        }
        if self._chaos:
            values["chaos"] = self._chaos
        engine = _native.NativeEngine(self._machine, values)
        self.native.append(engine)
        return engine


def chaotic(rule: Rule) -> RuleOnRealEngine:
    """Copies delayed at random, freed slots poisoned."""
    return RuleOnRealEngine(rule, chaos={"seed": 3, "longest_delay_s": 0.001})


BACKENDS: dict[str, Callable[[Rule], FakeBackend]] = {
    "unkind": FakeBackend,
    "native": RuleOnRealEngine,
    "chaotic": chaotic,
}


def default_backend(rule: Rule) -> FakeBackend:
    """Where a case does not say which: the unkind double, or the real engine on GPUs."""
    return FakeBackend(rule) if DEVICE.type == "cpu" else RuleOnRealEngine(rule)
