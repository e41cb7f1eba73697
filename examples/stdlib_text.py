"""Real text without a download: the sources of the Python standard library, as bytes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

# Enough for every batch of a short run to be new text; reading it takes well under a second.
TEXT_BYTES = 4 * 2**20


def stdlib_bytes(limit: int = TEXT_BYTES) -> bytes:
    """The first `limit` bytes of the library's modules, in the order of their paths.

    Raises:
        RuntimeError: the interpreter has been stripped of its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    pieces: list[bytes] = []
    size = 0
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if parts[0] in ("site-packages", "dist-packages", "test") or "tests" in parts:
            continue  # What happens to be installed must not change the text.
        pieces.append(path.read_bytes())
        size += len(pieces[-1])
        if size >= limit:
            break
    if size < limit:
        raise RuntimeError(
            f"{root} holds {size} bytes of Python sources, {limit} are needed: install the"
            " interpreter's standard library with its .py files"
        )
    return b"".join(pieces)[:limit]


class ByteBatches:
    """Batches by number: the same step, rank and seed give the same bytes in every run."""

    def __init__(self, batch: int, length: int, *, rank: int, world: int, seed: int) -> None:
        self._text = torch.frombuffer(bytearray(stdlib_bytes()), dtype=torch.uint8)
        self._batch, self._length = batch, length
        self._rank, self._world, self._seed = rank, world, seed

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and next bytes for `step`, each [batch, length] int64."""
        generator = torch.Generator().manual_seed(
            self._seed * 1_000_003 + step * self._world + self._rank
        )
        starts = torch.randint(
            len(self._text) - self._length - 1, (self._batch, 1), generator=generator
        )
        window = self._text[starts + torch.arange(self._length + 1)].long()
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()
