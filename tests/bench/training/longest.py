"""The longest sequence that trains, with every GPU capped."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import hyperframes as hf
from gpus import twin
from hyperframes.profile import signature_of

from .hyper import NOTHING_AGAIN, HyperMode, least_budget
from .measure import Meter, OutOfTimeError, forget_frames, time_limit
from .modes import Modes
from .workload import FineTune

STEP = 4096
# From here on a checkpoint's peak is where backward begins, with all inputs there; that of shorter
# ones is at its end, with all gradients, and says nothing about long ones.
SHORT = (16 * STEP, 20 * STEP)
HYPER = {
    "peer": ("host",), "peer_only": ("host", *NOTHING_AGAIN), "host": ("peer",), "auto": (),
}  # fmt: skip
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_USABLE = 0.965  # Of the cap, as a prediction: the allocator's segments are never all used.
# Of the cap, as a budget: so much of it plain checkpointing could use at its longest.
_BUDGETS = (0.86, 0.9, _USABLE)


class Search:
    """Trials of one mode after another.

    Args:
        cap: bytes that this process may allocate on its GPU.
        lend: the most that every lender lends; None: as much. More than that stands for several.
        make: the modes at the workload's present length.
        trials: most of a mode.
        until: no new trial after that, on the monotonic clock.
    """

    def __init__(
        self,
        workload: FineTune,
        device: torch.device,
        *,
        cap: int,
        lend: int | None = None,
        patience_s: float,
        make: Callable[[], Modes],
        say: Callable[[str], None],
        trials: int = 5,
        until: float = math.inf,
    ) -> None:
        self._workload, self._device = workload, device
        self._trials, self._until = trials, until
        self._cap, self._patience, self._make, self._say = cap, patience_s, make, say
        self._lend = cap if lend is None else lend
        self._short: hf.Profile | None = None
        if device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), device)
            # A lender's free memory less the reserve is what it lends.
            os.environ["HYPERFRAMES_RESERVE_BYTES"] = str(
                max(0, twin.lender_bytes(total) - self._lend)
            )

    def trial(self, mode: str, length: int) -> dict[str, Any]:
        """One step at that length; a row."""
        row: dict[str, Any] = {
            "part": "longest", "length": length, "mode": mode, "cap_bytes": self._cap,
            "gpus": max(1, twin.gpus()), "allocator": os.environ.get(_ALLOCATOR, ""),
            "lenders": max(0, twin.gpus() - 1) if mode in HYPER else 0,
        }  # fmt: skip
        if "peer" in HYPER.get(mode, ()):
            row["lenders"] = 0
        if row["lenders"]:
            row["lend_bytes"] = self._lend
        self._workload.set_length(length)
        meter = Meter(self._workload, self._device, warms=False)
        try:
            with time_limit(self._patience, f"{mode} at {length}"):
                row |= {"peak_bytes": self._step(mode, meter), "trains": True}
            if self._device.type == "cpu":
                row["trains"] = row["peak_bytes"] <= self._cap
        except (torch.OutOfMemoryError, hf.ResourceExhausted, OutOfTimeError) as error:
            row |= {"trains": False, "why": str(error)[:300]}
            row["out_of_time"] = isinstance(error, OutOfTimeError)  # Then nobody knows.
            forget_frames(error)
        meter.clear()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        known = f", peak {row['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in row else ""
        self._say(f"  {mode} {length}: {'trains' if row['trains'] else 'does not train'}{known}")
        if "why" in row:
            self._say(f"    {row['why']}")
        return row

    def _step(self, mode: str, meter: Meter) -> int:
        if mode not in HYPER:
            with meter.turn(), self._make().make(mode).entered():
                return meter.warm_peak()
        for share in _BUDGETS:
            hyper = self._hyper(mode, int(self._cap * share))
            try:
                with meter.turn(), hyper.entered():
                    return meter.warm_peak()
            except hf.ResourceExhausted:  # More of the cap, then.
                if share == _BUDGETS[-1]:
                    raise
            finally:
                hyper.close()
        raise AssertionError("there is no budget")

    def _hyper(self, mode: str, budget: int) -> HyperMode:
        return HyperMode(self._workload, self._profile(), forbid=HYPER[mode], limit=budget)

    def _profile(self) -> hf.Profile:
        """Of the workload at its present length, scaled from one that surely fits: a profile holds
        all that one block leaves, at once."""
        length = self._workload.length
        if length <= SHORT[0]:
            return self._workload.profile()
        if self._short is None:
            self._workload.set_length(SHORT[0])
            self._short = self._workload.profile()
            self._workload.set_length(length)
        return self._short.scaled(signature_of((self._workload.batch(),), {}))

    def _needed(self, mode: str, length: int) -> int:
        """Bytes: the peak, or the smallest budget that works."""
        self._workload.set_length(length)
        meter = Meter(self._workload, self._device, warms=False)
        if mode not in HYPER:
            return self._step(mode, meter)
        hyper = self._hyper(mode, 1)
        try:
            with hyper.entered():
                raise AssertionError("one byte is no budget")
        except hf.ResourceExhausted as error:
            return least_budget(str(error)) or 0
        finally:
            hyper.close()

    def predict(self, mode: str, short: int, long: int) -> int:
        """The longest multiple of STEP by a line through what two short lengths need."""
        first, second = self._needed(mode, short), self._needed(mode, long)
        per_token = (second - first) / (long - short)
        most = int(self._cap * _USABLE)
        length = long + int((most - second) / per_token)
        self._say(
            f"  {mode}: {short} needs {first / 1e9:.2f} GB, {long} {second / 1e9:.2f} GB:"
            f" {length} would need {most / 1e9:.2f} GB"
        )
        return max(STEP, length // STEP * STEP)

    def run(self, mode: str, lengths: list[int]) -> Iterator[dict[str, Any]]:
        """Trials at the given lengths, short ones first, up to one that does not train; without
        any, from a prediction up or down until the longest that trains is known, or trials are used
        up. A row after each."""
        if lengths:
            yield from self._upwards(mode, sorted(lengths))
            return
        with time_limit(self._patience, f"prediction for {mode}"):
            length = self.predict(mode, *SHORT)
        rows: dict[int, dict[str, Any]] = {}
        while length > 0 and length not in rows and len(rows) < self._trials:
            if rows and time.monotonic() > self._until:
                self._say(f"  {mode}: out of time after {len(rows)} trials")
                return
            rows[length] = self.trial(mode, length)
            yield rows[length]
            if rows[length].get("out_of_time"):
                return
            length += STEP if rows[length]["trains"] else -STEP

    def _upwards(self, mode: str, lengths: list[int]) -> Iterator[dict[str, Any]]:
        for length in lengths:
            row = self.trial(mode, length)
            yield row
            if not row["trains"]:
                return


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """From the longest that trained of each mode; against another one only where it is known that
    this one trains no longer, with the same settings of the allocator."""
    most: dict[tuple[str, str], int] = {}
    failed: dict[tuple[str, str], int] = {}
    for row in (row for row in rows if row["part"] == "longest"):
        of = row["mode"], row.get("allocator", "")
        if row["trains"]:
            most[of] = max(row["length"], most.get(of, 0))
        elif not row.get("out_of_time"):
            failed[of] = max(row["length"], failed.get(of, 0))
    found = {}
    for mode, word in (("peer", "longest_sequence"), ("host", "longest_sequence_host")):
        for name, other in (
            ("vs_checkpoint", "checkpoint"),
            ("vs_checkpoint_with_host_inputs", "checkpoint_inputs_on_host"),
        ):
            length, allocator = max(
                ((most[of], of[1]) for of in most if of[0] == mode), default=(0, "")
            )
            reference = other, allocator
            if length and 0 < most.get(reference, 0) < failed.get(reference, 0):
                found[f"{word}_{name}"] = length / most[reference]
    return found
