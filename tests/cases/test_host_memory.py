"""T21: more host memory than a limit allows: need, limit, setting; then less, or none of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import hyperframes as hf
from cases.small_gpt import DEVICE
from hyperframes import _backend
from hyperframes._host_memory import host_bytes, open_engine

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="limits of a machine without a GPU")

# In a process of its own: a limit that is lowered stays so for everybody in it.
CHILD = """
import resource, sys, torch
import hyperframes as hf
from hyperframes import _backend
from cases.small_gpt import assert_same, make_gpt, train
from cases.framing import profiled

def address_space():
    for line in open("/proc/self/status"):
        if line.startswith("VmSize:"):
            return int(line.split()[1]) << 10

def limit(room):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = resource.RLIM_INFINITY if room is None else address_space() + room
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else
                                            min(most, hard), hard))

def framed_like_plain(**options):
    plain = train(make_gpt())
    model = make_gpt()
    profile = profiled(model)
    half = profile.activation_bytes // 2
    with hf.hyperframes(model, profile=profile, activation_budget=half, **options) as inside:
        seen = train(inside)
    assert_same(plain, seen)
"""

BEFORE = (
    CHILD
    + """
limit(2 << 30)
lent = [d for d in _backend.EmbeddedBackend(torch.device("cpu")).describe()["devices"]
        if d.get("is_host")]
assert 0 < int(lent[0]["lendable_bytes"]) < 2 << 30, lent
framed_like_plain()
"""
)

# The limit falls between planning and mapping, as when another process takes the memory.
AT_THE_PIN = (
    CHILD
    + """
real = _backend.EmbeddedBackend.open_engine
needs = []

def open_engine(self, plan, options):
    needs.append(sum(int(need["bytes"]) for need in plan["leases"]))
    limit(needs[0] // 4 if len(needs) == 1 else None)
    try:
        return real(self, plan, options)
    finally:
        limit(None)

_backend.EmbeddedBackend.open_engine = open_engine
framed_like_plain(forbid=["peer", "recompute"])
assert len(needs) == 2 and needs[0] > needs[1] == 0, needs
"""
)


def run(script: str, **environment: str) -> str:
    values = {**os.environ, "HYPERFRAMES_HOST_DEVICES": "1 x 256MiB", **environment}
    values["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", script], env=values, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_t21_a_limit_known_before_cuts_what_is_lent_and_says_so() -> None:
    said = run(BEFORE, HYPERFRAMES_HOST_BYTES="1TiB")
    assert "HYPERFRAMES_HOST_BYTES asks for 1TiB of host memory" in said
    assert "ulimit -v" in said and "the address space limit of" in said


def test_t21_what_cannot_be_had_at_the_start_is_planned_anew_and_right() -> None:
    said = run(AT_THE_PIN)
    assert "of host memory: mmap was refused" in said
    assert "ulimit -v" in said and "Planned anew with none of it" in said


class _Refuses:
    """A backend whose first attempts find less host memory than was planned with."""

    plans_once = False

    def __init__(self, most: int, words: str = "9GiB of host memory cannot be pinned") -> None:
        self.most, self.words = most, words
        self.asked: list[int] = []

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Any:
        self.asked.append(sum(int(need["bytes"]) for need in plan["leases"]))
        if self.asked[-1] > self.most:
            raise hf.ResourceExhausted(self.words)
        return options


class _Plan:
    def __init__(self, size: int) -> None:
        self.rank = {"leases": [{"bytes": size, "tier": "TIER_HOST"}] if size else []}


class _Book:
    """Plans with all the host memory that it may."""

    def __init__(self, backend: _Refuses) -> None:
        self.backend, self.most = backend, 8 << 30
        self.no_lenders = self.no_host = False

    def lend_less_host(self, most: int) -> None:
        self.most, self.no_host = most, most == 0

    def current(self, signature: Any) -> _Plan:
        return _Plan(self.most)


def attempts(backend: _Refuses) -> list[int]:
    book: Any = _Book(backend)
    plan: Any = _Plan(8 << 30)
    _, last = open_engine(book, plan, None, {})  # type: ignore[arg-type]
    assert host_bytes(last) == backend.asked[-1]
    return [size >> 30 for size in backend.asked]


def test_t21_a_failed_pin_halves_until_it_fits_or_does_without() -> None:
    assert attempts(_Refuses(8 << 30)) == [8]
    assert attempts(_Refuses(3 << 30)) == [8, 4, 2]
    assert attempts(_Refuses(0)) == [8, 4, 2, 1, 0]


def test_t21_a_granted_lease_is_taken_whole_or_not_at_all() -> None:
    backend = _Refuses(3 << 30)
    backend.plans_once = True
    assert attempts(backend) == [8, 0]


def test_t21_another_devices_shortage_is_not_mistaken_for_it() -> None:
    with pytest.raises(hf.ResourceExhausted, match="GPU-1"):
        attempts(_Refuses(0, "device GPU-1: 9GiB asked, 1GiB free"))


def test_t21_a_note_of_the_machine_is_said_by_one_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _backend._tell_host_note({"host_note": "less is lent"})
    monkeypatch.setenv("LOCAL_RANK", "1")
    _backend._tell_host_note({"host_note": "less is lent"})
    _backend._tell_host_note({})
    assert capsys.readouterr().err == "HyperFrames: less is lent.\n"
