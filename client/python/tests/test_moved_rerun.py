"""Blocks that run again with little memory: what they make again waits elsewhere in backward."""

from __future__ import annotations

from typing import Any

import pytest

from cases.backends import BACKENDS
from cases.framing import framed
from cases.small_gpt import assert_same, make_gpt, train


def moved(block: str, storage: dict[str, Any]) -> str:
    """Every block runs again, its inputs wait on a peer, and what it makes again everywhere."""
    return "recompute:" + ("peer", "host", "keep")[storage["ordinal"] % 3]


@pytest.mark.parametrize("backend_name", list(BACKENDS))
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_bits_are_those_of_the_plain_run(dropout: float, backend_name: str) -> None:
    plain = train(make_gpt(dropout=dropout))
    context = framed(make_gpt(dropout=dropout), moved, backend_name)
    with context as inside:
        assert_same(plain, train(inside))
    stats = context.stats()
    assert stats["rerun_moved_storages"] > 3 * 3 * 5
    assert stats["engine"]["live_storages"] == 0
