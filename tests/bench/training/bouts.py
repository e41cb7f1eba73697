"""What benchmarks that measure modes turn by turn share: their flags, and all bouts of a length."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .measure import Measured, Meter, Plan, measure, row_of
from .modes import Modes
from .report import lengths_of, word_of
from .workload import Workload


def add_flags(parser: argparse.ArgumentParser, default_modes: str = "all") -> None:
    """Which lengths and modes, and for how long."""
    flag = parser.add_argument
    flag("--lengths", default="", help="such as 8k,32k, the default of the part modes")
    flag(
        "--modes", default="", help=f"names, in the order of their turns; default: {default_modes}"
    )
    flag("--rounds", type=int, default=3)
    flag("--steps", type=int, default=3, help="timed steps of each turn")
    flag("--warm", type=int, default=1, help="steps before them")
    flag("--tries", type=int, default=2, help="budgets tried until the peak is at its limit")
    flag("--peer-factor", type=float, default=1.05, help="of checkpointing's peak")
    flag("--host-factor", type=float, default=1.10)
    flag("--patience", type=float, default=120.0, help="seconds for a mode's proof, or one turn")
    flag("--seconds", type=float, default=450.0, help="no new round after that")
    flag("--once", action="store_true", help="do not prove that the reference repeats itself")
    flag("--early", action="store_true", help="a mode's first turn follows its proof: saves steps")
    flag("--tiny", action="store_true", help="a few seconds on a processor, simulated GPUs")


def read_flags(
    parser: argparse.ArgumentParser, words: list[str] | None, names: Sequence[str]
) -> argparse.Namespace:
    """The flags, with lists as lists, and device, dtype and until beside them.

    Args:
        names: the modes there are; another one is a usage error.
    """
    args = parser.parse_args(words)
    if not args.tiny and not torch.cuda.is_available():
        parser.exit(2, "needs a GPU that torch sees; --tiny runs on a processor\n")
    args.device = torch.device("cpu") if args.tiny else torch.device("cuda", 0)
    args.dtype = torch.float32 if args.tiny else torch.bfloat16
    if args.tiny:
        os.environ.setdefault("HYPERFRAMES_HOST_DEVICES", "2 x 256MiB")
        torch.set_num_threads(1)
    args.lengths = lengths_of(args.lengths) if args.lengths else []
    args.modes = args.modes.split(",") if args.modes else []
    unknown = sorted(set(args.modes) - set(names))
    if unknown:
        parser.error(f"no mode {', '.join(unknown)}; there are {', '.join(names)}")
    args.until = time.monotonic() + args.seconds
    return args


def plan_of(args: argparse.Namespace) -> Plan:
    return Plan(
        args.rounds, args.steps, args.warm, args.patience, repeat_proof=not args.once,
        early=args.early,
    )  # fmt: skip


def rows_by_bout(
    args: argparse.Namespace,
    workload: Workload,
    length: int,
    *,
    modes: Modes,
    plan: Plan,
    say: Callable[[str], None],
    keep: Callable[[list[dict[str, Any]]], None],
) -> Iterator[list[dict[str, Any]]]:
    """All modes at one length, a row each; after every bout its rows. ``keep`` gets the rows of a
    bout as far as they are known, after every round: what comes later may take too long."""
    meter = Meter(workload, args.device, warms=args.warm > 0)

    def rows(measured: list[Measured]) -> list[dict[str, Any]]:
        return [
            {"part": "modes", "length": length, **row_of(one, measured, workload.tokens)}
            for one in measured
            if one.totals or one.failure or one.verdict == "different"
        ]

    def note(measured: list[Measured]) -> None:
        modes.note_checkpoint_peaks(measured)
        keep(rows(measured))

    for names in modes.bouts(args.modes):
        say(f"length {word_of(length)}: {', '.join(names)}")
        measured = measure(
            [modes.make(name) for name in names], meter, plan, say=say,
            keep_going=lambda: time.monotonic() < args.until, note=note,
        )  # fmt: skip
        modes.note_checkpoint_peaks(measured)
        yield rows(measured)
