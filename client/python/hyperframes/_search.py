"""Which few of many things it takes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def minimal(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> list[_T]:
    """A subset that still fails and of which nothing can be left out (delta debugging).

    Args:
        items: which fail together; their order is kept.
        fails: tried with subsets; nearly log2(n) of them where one item is to blame.
    """
    rest = list(items)
    parts = 2
    while len(rest) > 1:
        size = max(1, len(rest) // parts)
        chunks = [rest[start : start + size] for start in range(0, len(rest), size)]
        alone = next((chunk for chunk in chunks if fails(chunk)), None)
        if alone is not None:
            rest, parts = alone, 2
            continue
        without = [[item for item in rest if item not in chunk] for chunk in chunks]
        fewer = next((left for left in without if left and fails(left)), None)
        if fewer is not None:
            rest, parts = fewer, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(len(rest), parts * 2)
    return rest
