"""One self-contained HTML page: memory over one step in each mode, peaks, and the table.

    python examples/report.py --world 2 --out report.html run/nothing-{rank}.json ...

No scripts, no assets, readable in light and dark, and in black and white: curves differ by dash and
carry their names.
"""

from __future__ import annotations

import argparse
import html
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from summary import HEADINGS, MIB, REFERENCE, RunSummary, load_run, rows

# Okabe and Ito's colours, apart for every common kind of colour blindness; darker for light pages.
STYLES = {
    "nothing": ("var(--vermilion)", ""),
    "checkpointing": ("var(--blue)", "7 4"),
    "hyperframes": ("var(--green)", ""),
}
OTHER_STYLE = ("var(--ink)", "2 3")

CSS = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --soft: #57606a;
  --line: #d8dee4; --vermilion: #b64500; --blue: #005f9e; --green: #00775a; }
@media (prefers-color-scheme: dark) { :root { --page: #15191e; --ink: #e6edf3; --soft: #9aa4af;
  --line: #343b43; --vermilion: #ff9a52; --blue: #62b5f0; --green: #3fd0a6; } }
body { background: var(--page); color: var(--ink); margin: 2rem auto; max-width: 62rem;
  padding: 0 1rem; font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p, figcaption { color: var(--soft); max-width: 46rem; } figure { margin: 0; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; font-weight: 500; }
.scroll { overflow-x: auto; }
"""

WIDTH, HEIGHT = 900, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 20, 50


def ticks(highest: float, wanted: int = 6) -> list[float]:
    """Round values from 0 to just above `highest`, about `wanted` of them."""
    raw = max(highest, 1e-9) / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(s * magnitude for s in (1, 2, 5, 10) if s * magnitude >= raw)
    return [step * i for i in range(math.ceil(highest / step) + 1)]


def _style(mode: str) -> tuple[str, str]:
    return STYLES.get(mode, OTHER_STYLE)


def _spread(wanted: list[float], gap: float) -> list[float]:
    """Label heights moved apart so that neighbours are at least `gap` from each other."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    for before, after in itertools.pairwise(order):
        placed[after] = max(placed[after], placed[before] + gap)
    return placed


def curves_svg(runs: Sequence[RunSummary]) -> str:
    """Bytes that the allocator holds for one step, over that step's time, a curve per run."""
    shown = [run for run in runs if run.curve]
    times = ticks(max(run.curve[-1][0] for run in shown), 8)
    sizes = ticks(max(b for run in shown for _, b in run.curve) / MIB)
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(seconds: float) -> float:
        return LEFT + plot_width * seconds / times[-1]

    def y(mib: float) -> float:
        return TOP + plot_height * (1 - mib / sizes[-1])

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="curves-title">'
        '<title id="curves-title">Memory over one training step, in MiB, per mode</title>'
    ]
    for size in sizes:
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(size):.1f}"'
            f' y2="{y(size):.1f}"/><text class="soft" text-anchor="end" x="{LEFT - 8}"'
            f' y="{y(size) + 4:.1f}">{size:g}</text>'
        )
    for moment in times:
        parts.append(
            f'<line class="grid" x1="{x(moment):.1f}" x2="{x(moment):.1f}"'
            f' y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}"/><text class="soft"'
            f' text-anchor="middle" x="{x(moment):.1f}" y="{HEIGHT - BOTTOM + 20}">'
            f"{moment:.4g}</text>"
        )
    parts.append(
        f'<text class="soft" text-anchor="middle" x="{LEFT + plot_width / 2}"'
        f' y="{HEIGHT - 8}">time within the step (s)</text>'
        f'<text class="soft" text-anchor="middle" transform="rotate(-90)"'
        f' x="{-(TOP + plot_height / 2)}" y="18">allocated since the step began (MiB)</text>'
    )
    peaks = [max(run.curve, key=lambda point: point[1]) for run in shown]
    heights = _spread([y(peak[1] / MIB) for peak in peaks], 34)
    for run, peak, height in zip(shown, peaks, heights, strict=True):
        colour, dash = _style(run.mode)
        points = " ".join(f"{x(t):.1f},{y(b / MIB):.1f}" for t, b in run.curve)
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"'
            f' stroke-dasharray="{dash}" points="{points}"/>'
            f'<circle cx="{x(peak[0]):.1f}" cy="{y(peak[1] / MIB):.1f}" r="3.5"'
            f' fill="{colour}"/><line stroke="{colour}" stroke-width="3"'
            f' stroke-dasharray="{dash}" x1="{WIDTH - RIGHT + 10}" x2="{WIDTH - RIGHT + 34}"'
            f' y1="{height:.1f}" y2="{height:.1f}"/><text x="{WIDTH - RIGHT + 40}"'
            f' y="{height + 4:.1f}">{html.escape(run.mode)}</text><text class="soft"'
            f' x="{WIDTH - RIGHT + 40}" y="{height + 19:.1f}">peak {peak[1] / MIB:.0f} MiB</text>'
        )
    return "".join([*parts, "</svg>"])


def peaks_svg(runs: Sequence[RunSummary]) -> str:
    """A bar per run: the highest activation peak of its ranks, with the budget as a line."""
    scale = ticks(max(max(run.activation_peaks) for run in runs) / MIB, 8)
    row, left, right = 34, 130, 90
    height = row * len(runs) + 46
    plot = WIDTH - left - right

    def x(mib: float) -> float:
        return left + plot * mib / scale[-1]

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="peaks-title">'
        '<title id="peaks-title">Peak activation bytes per rank, in MiB, per mode</title>'
    ]
    base = row * len(runs)
    for size in scale:
        parts.append(
            f'<line class="grid" x1="{x(size):.1f}" x2="{x(size):.1f}" y1="0" y2="{base}"/>'
            f'<text class="soft" text-anchor="middle" x="{x(size):.1f}" y="{base + 18}">'
            f"{size:g}</text>"
        )
    parts.append(
        f'<text class="soft" text-anchor="middle" x="{left + plot / 2}" y="{base + 40}">'
        "peak activations of the larger rank (MiB)</text>"
    )
    for index, run in enumerate(runs):
        colour, _ = _style(run.mode)
        top, peak = index * row + 7, max(run.activation_peaks) / MIB
        parts.append(
            f'<text text-anchor="end" x="{left - 10}" y="{top + 15}">{html.escape(run.mode)}'
            f'</text><rect x="{left}" y="{top}" width="{max(x(peak) - left, 1):.1f}" height="20"'
            f' fill="{colour}"/>'
        )
        label = x(peak) + 8
        if run.budget is not None:
            at = x(run.budget / MIB)
            label = max(label, at + 8)
            parts.append(
                f'<line stroke="var(--ink)" stroke-width="2" x1="{at:.1f}" x2="{at:.1f}"'
                f' y1="{top - 5}" y2="{top + 25}"/>'
            )
        note = "" if run.budget is None else f" of {run.budget / MIB:.0f} allowed"
        parts.append(f'<text x="{label:.1f}" y="{top + 15}">{peak:.1f}{note}</text>')
    return "".join([*parts, "</svg>"])


def table_html(runs: Sequence[RunSummary]) -> str:
    columns = [HEADINGS, *rows(runs)]
    lines = []
    for index in range(len(HEADINGS)):
        tag = "th" if index == 0 else "td"
        cells = "".join(
            f'<{tag} scope="col">{html.escape(column[index])}</{tag}>'
            if index == 0
            else f"<td>{html.escape(column[index])}</td>"
            for column in columns[1:]
        )
        lines.append(f'<tr><th scope="row">{html.escape(columns[0][index])}</th>{cells}</tr>')
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def page(runs: Sequence[RunSummary]) -> str:
    """The whole document. Runs without a curve are in the table only."""
    curves = ""
    if any(run.curve for run in runs):
        curves = (
            "<h2>Memory over one step</h2><figure>"
            + curves_svg(runs)
            + "<figcaption>What the process's allocator handed out and did not get back, rank 0,"
            " one step after warm-up. It includes gradients and working memory, which all modes"
            " need alike; the rise is forward, the fall is backward.</figcaption></figure>"
        )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>HyperFrames: one training job, {len(runs)} modes</title>"
        f"<style>{CSS}</style></head><body>"
        f"<h1>One training job, {len(runs)} modes</h1>"
        f"<p>Each mode runs the same steps on the same text. Bit-equal compares every loss and"
        f" every gradient of every step and rank with the mode “{REFERENCE}”.</p>"
        + curves
        + "<h2>Peak activations</h2><figure>"
        + peaks_svg(runs)
        + "<figcaption>Counted where tensors are saved for backward. The upright line is the"
        " budget that the run was given.</figcaption></figure>"
        "<h2>Figures</h2>" + table_html(runs) + "</body></html>\n"
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path, help="report files with {rank} in the name")
    parser.add_argument("--world", type=int, required=True, help="ranks of each run")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    args.out.write_text(page([load_run(pattern, args.world) for pattern in args.runs]))
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
