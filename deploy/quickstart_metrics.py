"""The run's metrics, as the Prometheus that watched it holds them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import draw
from local_prometheus import Prometheus
from quickstart_job import BrokenPromiseError, say

# What to show, a metric, the labels that tell its series apart, and its unit. Of each the largest
# value that was scraped: a killed daemon counts from zero again.
SHOWN = (
    ("water level, highest", "hyperframes_water_level_high_ratio", ("node", "uuid"), "percentunit"),
    ("activations, peak", "hyperframes_activation_peak_bytes", ("node", "uuid"), "bytes"),
    ("copied", "hyperframes_copied_bytes_total", ("direction", "tier"), "bytes"),
    ("exposed wait, seconds", "hyperframes_fetch_wait_seconds_total", ("node", "uuid"), "short"),
    ("steps", "hyperframes_steps_total", ("node", "uuid"), "short"),
    ("plans", "hyperframes_plan_duration_seconds_count", (), "short"),
    ("checkpoints committed", "hyperframes_checkpoint_commits_total", (), "short"),
    ("workers that ended", "hyperframes_worker_exits_total", ("node", "reason"), "short"),
)
SCRAPES_S = 2.5  # Two scrapes more, so that the last event is in.


def _series(prometheus: Prometheus, metric: str, by: tuple[str, ...]) -> list[dict[str, Any]]:
    labels = f"by ({', '.join(by)}) " if by else ""
    return prometheus.query(f"sum {labels}(max_over_time({metric}[1h])) > 0")


def show_metrics(prometheus: Prometheus, began: float, picture: Path) -> None:
    """Prints what Prometheus holds of the run since `began` (Unix seconds) and draws its panels.

    Raises:
        BrokenPromiseError: it holds nothing of one of the metrics.
    """
    time.sleep(SCRAPES_S)
    say(f"==> The run as Prometheus holds it ({prometheus.address})")
    missing = []
    for what, metric, by, unit in SHOWN:
        series = _series(prometheus, metric, by)
        values = [
            " ".join([*(sample["metric"].get(label, "") for label in by), ""])
            + draw.number(float(sample["value"][1]), unit)
            for sample in sorted(series, key=lambda sample: sorted(sample["metric"].items()))
        ]
        say(f"    {what:<24}{', '.join(values) or '-'}")
        missing += [] if values else [metric]
    if missing:
        raise BrokenPromiseError(f"Prometheus holds nothing of {', '.join(missing)}")
    span = (began, time.time())
    picture.write_text(
        draw.draw(
            lambda expression: prometheus.query_range(expression, *span),
            lambda expression: draw.filled_in(expression, "5s"),
            span,
        )
    )
    say(f"    the dashboard's main panels over the whole run: {picture}")
