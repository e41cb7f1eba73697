"""Draws the dashboard's main panels from what a Prometheus holds, without Grafana, as one SVG.

The panels' own queries are asked, so that the picture shows what the dashboard would.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from typing import Any

from generate import dashboard

# matrix(expression) as the data of /api/v1/query_range has it: a list of {metric, values}.
Ask = Callable[[str], list[dict[str, Any]]]

MAIN = (
    "Water level by GPU",
    "Frames by tier",
    "Activations on the GPU",
    "Bytes copied",
    "Exposed wait",
    "Micro-batches run",
    "Micro-batches wait",
    "Jobs by state",
)
WIDTH, HEIGHT, COLUMNS = 470, 230, 2
LEFT, TOP, BOTTOM, PLOT = 62, 34, 152, 392
COLORS = ("#3274d9", "#e0752d", "#56a64b", "#a352cc", "#c4162a", "#8f8f00", "#0f8f8f", "#606060")
MOST_LINES = 8


# What Grafana fills in for "All" of each variable.
_ALL = {"$node": ".+", "$gpu": ".+", "$job": ".+"}


def filled_in(expression: str, rate_interval: str) -> str:
    """A panel's expression as Grafana sends it for "All"; `rate_interval` as in "15s"."""
    for name, value in {**_ALL, "$__rate_interval": rate_interval}.items():
        expression = expression.replace(name, value)
    return expression


def number(value: float, unit: str) -> str:
    """With the unit of Grafana's names that the main panels use."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %" if value >= 0.1 or value == 0 else f"{100 * value:.2g} %"
    if unit in ("bytes", "Bps"):
        for prefix in ("", "Ki", "Mi", "Gi"):
            if value < 1024 or prefix == "Gi":
                break
            value /= 1024
        return f"{value:.3g} {prefix}B{'/s' if unit == 'Bps' else ''}"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1e3 * value:.3g} ms"
    return f"{value:.3g}"


def legend(pattern: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern


def lines_of(panel: dict[str, Any], ask: Ask, fill: Callable[[str], str]) -> list[Any]:
    """(legend, [(time, value)]) of the series that were not 0 all the time; of one if all were."""
    found = []
    for target in panel["targets"]:
        for series in ask(fill(target["expr"])):
            points = [(float(at), float(value)) for at, value in series["values"]]
            points = [point for point in points if math.isfinite(point[1])]
            if points:
                found.append((legend(target["legendFormat"], series["metric"]), points))
    telling = [line for line in found if max(value for _, value in line[1]) > 0]
    return sorted(telling or found[:1], key=lambda line: line[0])[:MOST_LINES]


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(words)}</text>'


def draw_panel(panel: dict[str, Any], lines: list[Any], span: tuple[float, float]) -> list[str]:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    highest = max((value for _, points in lines for _, value in points), default=0.0)
    top = panel["fieldConfig"]["defaults"].get("max") or highest * 1.1 or 1.0
    out = [
        f'<rect x="4" y="4" width="{WIDTH - 8}" height="{HEIGHT - 8}" rx="3" class="panel"/>',
        text(14, 23, panel["title"], 'class="title"'),
    ]
    for share in (0.0, 0.5, 1.0):
        y = BOTTOM - share * (BOTTOM - TOP)
        out.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + PLOT}" y2="{y}" class="grid"/>')
        out.append(text(LEFT - 5, y + 3, number(share * top, unit), 'text-anchor="end"'))
    for share in (0.0, 0.5, 1.0):
        seconds = f"{share * (span[1] - span[0]):.0f} s"
        out.append(text(LEFT + share * PLOT, BOTTOM + 13, seconds, 'text-anchor="middle"'))
    for at, (name, points) in enumerate(lines):
        color = COLORS[at % len(COLORS)]
        path = " ".join(
            f"{LEFT + PLOT * (when - span[0]) / (span[1] - span[0]):.1f},"
            f"{BOTTOM - min(value / top, 1.0) * (BOTTOM - TOP):.1f}"
            for when, value in points
        )
        out.append(f'<polyline points="{path}" stroke="{color}" class="line"/>')
        x, y = 14 + 226 * (at % 2), BOTTOM + 29 + 13 * (at // 2)
        peak = number(max(value for _, value in points), unit)
        out.append(f'<rect x="{x}" y="{y - 6}" width="10" height="3" fill="{color}"/>')
        out.append(text(x + 14, y, f"{name}, at most {peak}"))
    return out


def draw(ask: Ask, fill: Callable[[str], str], span: tuple[float, float]) -> str:
    """An SVG of the main panels over `span` (seconds since 1970).

    Raises:
        ValueError: a panel has no data.
    """
    by_title = {panel["title"]: panel for panel in dashboard()["panels"]}
    rows = -(-len(MAIN) // COLUMNS)
    size = f'width="{WIDTH * COLUMNS}" height="{HEIGHT * rows}"'
    out: list[str] = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="10">',
        "<style>text{fill:#333}.title{font-size:12px;font-weight:bold}.panel{fill:#fff;"
        "stroke:#ccc}.grid{stroke:#e6e6e6}.line{fill:none;stroke-width:1.5}</style>",
        f'<rect {size} fill="#f4f5f5"/>',
    ]
    for at, title in enumerate(MAIN):
        lines = lines_of(by_title[title], ask, fill)
        if not lines:
            raise ValueError(f"panel '{title}' has no data between {span[0]:.0f} and {span[1]:.0f}")
        place = f"translate({WIDTH * (at % COLUMNS)},{HEIGHT * (at // COLUMNS)})"
        out += [f'<g transform="{place}">', *draw_panel(by_title[title], lines, span), "</g>"]
    return "\n".join([*out, "</svg>"]) + "\n"
