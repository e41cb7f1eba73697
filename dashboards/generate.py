"""Writes hyperframes.json, the Grafana dashboard. Its schema is that of Grafana 11.

    python dashboards/generate.py

Plain data, the same bytes at every run: a test holds the file in the tree against it, and loads it
through grafana-foundation-sdk, which is Grafana's own schema. Every panel has a unit and a sentence
that says what is good and what is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent / "hyperframes.json"
UID = "hyperframes"
SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GPU = 'node=~"$node",uuid=~"$gpu"'
NODE = 'node=~"$node"'
# What a worker reports, where a worker of the chosen jobs runs now.
OF_JOB = 'and on (uuid) hyperframes_job_info{job_id=~"$job"}'
BANDWIDTH = (
    f"sum by (direction, tier) (rate(hyperframes_copied_bytes_total{{{GPU}}}[$__rate_interval])) / "
    f"(sum by (direction, tier) (rate(hyperframes_copy_seconds_total{{{GPU}}}[$__rate_interval]))"
    " > 0)"
)

Query = tuple[str, str]  # Expression, legend.


def rate(metric: str, labels: str = GPU) -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket[$__rate_interval])))"


def panel(
    title: str,
    unit: str,
    description: str,
    *queries: Query,
    kind: str = "timeseries",
    most: float | None = None,
    stack: bool = False,
    width: int = 12,
) -> dict[str, Any]:
    """One panel, not yet placed. `most` is the top of the axis, `width` of 24 columns."""
    defaults: dict[str, Any] = {"unit": unit, "min": 0}
    if most is not None:
        defaults["max"] = most
    if kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 20 if stack else 5,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"group": "A", "mode": "normal" if stack else "none"},
        }
        options: dict[str, Any] = {
            "legend": {
                "calcs": ["max", "lastNotNull"],
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        options = {
            "colorMode": "value",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": expression,
                "legendFormat": legend,
                "range": True,
            }
            for at, (expression, legend) in enumerate(queries)
        ],
        "width": width,
    }


def memory() -> Iterator[dict[str, Any]]:
    yield panel(
        "Water level by GPU", "percentunit",
        "Peak bytes over a step, own and lent, of the usable bytes. Level lines close together are"
        " good; one GPU at the top with empty neighbours is what lending is for.",
        (f"hyperframes_water_level_ratio{{{GPU}}}", "{{node}} {{uuid}}"), most=1,
    )  # fmt: skip
    yield panel(
        "High-water mark by GPU", "percentunit",
        "The highest water level since the agent started.",
        (f"hyperframes_water_level_high_ratio{{{GPU}}}", "{{node}} {{uuid}}"), most=1,
    )  # fmt: skip
    yield panel(
        "Frames by tier", "bytes",
        "Bytes of live frames by where they wait: kept, on a peer, in host memory.",
        (f"sum by (tier) (hyperframes_frame_bytes{{{GPU}}})", "{{tier}}"), stack=True,
    )  # fmt: skip
    yield panel(
        "Activations on the GPU", "bytes",
        "Now, and at the peak of the last step.",
        (f"hyperframes_activation_peak_bytes{{{GPU}}} {OF_JOB}", "{{uuid}} peak"),
        (f"hyperframes_activation_bytes{{{GPU}}} {OF_JOB}", "{{uuid}} now"),
    )  # fmt: skip
    yield panel(
        "Lent bytes by device", "bytes",
        "What a GPU or host has lent, and what it may lend. Near the top, plans get worse.",
        (f"hyperframes_lent_used_bytes{{{GPU}}}", "{{uuid}} lent"),
        (f"hyperframes_lent_capacity_bytes{{{GPU}}}", "{{uuid}} may lend"),
    )  # fmt: skip
    yield panel(
        "Largest lease to be had", "bytes",
        "Far below what is free: the lent memory is in pieces.",
        (f"hyperframes_lent_largest_free_bytes{{{GPU}}}", "{{uuid}}"),
        (f"hyperframes_lent_reserved_bytes{{{GPU}}}", "{{uuid}} never lent"),
    )  # fmt: skip
    yield panel(
        "Own memory that the plan predicts", "bytes",
        "At the peak of a step, with weights and optimizer.",
        (f"hyperframes_predicted_peak_bytes{{{GPU}}} {OF_JOB}", "{{uuid}}"),
    )  # fmt: skip


def level() -> Iterator[dict[str, Any]]:
    water = f"hyperframes_water_level_ratio{{{GPU}}}"
    yield panel(
        "Level: max / mean", "none",
        "1 is level. An alert fires above 1.5 while the fullest GPU is above 70 %.",
        (f"max by (node) ({water}) / (avg by (node) ({water}) > 0)", "{{node}}"),
    )  # fmt: skip
    yield panel(
        "Fullest and emptiest GPU", "percentunit",
        "The distance between the two is what levelling has not used.",
        (f"max by (node) ({water})", "{{node}} fullest"),
        (f"min by (node) ({water})", "{{node}} emptiest"), most=1,
    )  # fmt: skip


def transfers() -> Iterator[dict[str, Any]]:
    copied = rate("hyperframes_copied_bytes_total")
    yield panel(
        "Bytes copied", "Bps", "Frames on their way out and back, by tier.",
        (f"sum by (direction, tier) ({copied})", "{{direction}} {{tier}}"),
    )  # fmt: skip
    yield panel(
        "Speed while copying", "Bps",
        "Bytes by the seconds in which the lane was busy: what the link really does.",
        (BANDWIDTH, "{{direction}} {{tier}}"),
    )  # fmt: skip
    yield panel(
        "Lanes in use", "percentunit",
        "Share of time for which a lane was copying. Near 100 % there is nothing left to overlap.",
        (rate("hyperframes_copy_seconds_total"), "{{uuid}} {{direction}} {{tier}}"),
    )  # fmt: skip
    yield panel(
        "Copies", "cps", "Many small ones cost more than few large ones.",
        (
            f"sum by (direction, tier) ({rate('hyperframes_copies_total')})",
            "{{direction}} {{tier}}",
        ),
    )  # fmt: skip
    yield panel(
        "Bytes in flight on the GPU", "bytes",
        "Waiting for a copy out, or copied in ahead of use: what overlap costs in memory.",
        (f"hyperframes_in_flight_bytes{{{GPU}}}", "{{uuid}} {{direction}}"),
    )  # fmt: skip
    yield panel(
        "Frames that missed their place", "cps",
        "Larger than the plan knew, so they went to host memory or stayed. Should be 0.",
        (rate("hyperframes_frame_overflows_total"), "{{uuid}} to {{tier}}"),
    )  # fmt: skip


def speed() -> Iterator[dict[str, Any]]:
    yield panel(
        "Exposed wait", "percentunit",
        "Share of time for which the GPU stood still for a copy. An alert fires above 20 %.",
        (f"{rate('hyperframes_fetch_wait_seconds_total')} {OF_JOB}", "{{uuid}}"),
    )  # fmt: skip
    yield panel(
        "Exposed wait per step", "s", "The same, per training step.",
        (
            f"{rate('hyperframes_fetch_wait_seconds_total')}"
            f" / ({rate('hyperframes_steps_total')} > 0) {OF_JOB}",
            "{{uuid}}",
        ),
    )  # fmt: skip
    batches = f"{rate('hyperframes_micro_batches_total')} > 0"
    yield panel(
        "Micro-batches run", "s",
        "From a micro-batch's forward to the end of its backward, by pipeline stage; a model that"
        " is not cut is stage 0.",
        (
            f"{rate('hyperframes_micro_batch_run_seconds_total')} / ({batches}) {OF_JOB}",
            "{{uuid}} stage {{stage}}",
        ),
    )  # fmt: skip
    yield panel(
        "Micro-batches wait", "s",
        "For their turn: data, optimizer, other ranks, bubbles of a pipeline.",
        (
            f"{rate('hyperframes_micro_batch_wait_seconds_total')} / ({batches}) {OF_JOB}",
            "{{uuid}} stage {{stage}}",
        ),
    )  # fmt: skip
    waits = rate("hyperframes_micro_batch_wait_seconds_total")
    runs = rate("hyperframes_micro_batch_run_seconds_total")
    yield panel(
        "Bubble ratio", "percentunit",
        "Share of a stage's time in which none of its micro-batches runs. Without a pipeline that"
        " is the optimizer, the data and the other ranks.",
        (f"{waits} / ({runs} + {waits} > 0) {OF_JOB}", "{{uuid}} stage {{stage}}"),
    )  # fmt: skip
    yield panel(
        "Recomputing", "percentunit", "Share of time spent on dropped frames.",
        (f"{rate('hyperframes_recompute_seconds_total')} {OF_JOB}", "{{uuid}}"),
    )  # fmt: skip
    yield panel(
        "Steps", "ops", "Training steps per second.",
        (f"{rate('hyperframes_steps_total')} {OF_JOB}", "{{uuid}}"),
    )  # fmt: skip


def plans() -> Iterator[dict[str, Any]]:
    name = "hyperframes_plan_duration_seconds"
    yield panel(
        "Time to a plan", "s", "From the last rank's profile to the committed plan.",
        (f"{name}_sum / ({name}_count > 0)", "mean since the start"),
        (quantile(0.99, name), "99 %"),
    )  # fmt: skip
    yield panel(
        "Plans", "short", "Plans committed, and ranks that wait for theirs.",
        (f"{name}_count", "committed"), ("hyperframes_waiting_calls", "calls that wait"), width=6,
    )  # fmt: skip
    yield panel(
        "Plan epoch", "none", "Of the plan committed last.", ("hyperframes_plan_epoch", "epoch"),
        kind="stat", width=6,
    )  # fmt: skip


def jobs() -> Iterator[dict[str, Any]]:
    yield panel(
        "Jobs by state", "short", "Ended ones count while the coordinator remembers them.",
        ("sum by (state) (hyperframes_jobs)", "{{state}}"), stack=True,
    )  # fmt: skip
    yield panel(
        "Workers by state", "short", "As the agents see them.",
        (f"sum by (node, state) (hyperframes_workers{{{NODE}}})", "{{node}} {{state}}"), stack=True,
    )  # fmt: skip
    yield panel(
        "Ranks by job", "short", "Workers that run now.",
        (
            f'count by (job_id) (hyperframes_job_info{{{GPU},job_id=~"$job"}})',
            "{{job_id}}",
        ),
    )  # fmt: skip
    yield panel(
        "Workers that ended or were started again", "short", "By how they ended, in the last hour.",
        (f"increase(hyperframes_worker_exits_total{{{NODE}}}[1h])", "{{node}} {{reason}}"),
        (f"increase(hyperframes_worker_restarts_total{{{NODE}}}[1h])", "{{node}} started again"),
    )  # fmt: skip
    yield panel(
        "Leases that ended", "short",
        "By reason, in the last hour. worker_died and revoked deserve a look.",
        (f"increase(hyperframes_leases_reclaimed_total{{{NODE}}}[1h])", "{{node}} {{reason}}"),
    )  # fmt: skip
    yield panel(
        "Leases mapped by workers", "short", "Rises for ever only when leases leak.",
        (
            f"hyperframes_lease_mappings_opened_total{{{NODE}}}"
            f" - hyperframes_lease_mappings_closed_total{{{NODE}}}",
            "{{node}}",
        ),
    )  # fmt: skip


def checkpoints() -> Iterator[dict[str, Any]]:
    save = "hyperframes_checkpoint_save_seconds"
    yield panel(
        "Checkpoints on record", "short", "OPEN and PREPARED are under way.",
        ("sum by (state) (hyperframes_checkpoints)", "{{state}}"), stack=True,
    )  # fmt: skip
    yield panel(
        "Commits and aborts", "short",
        "In the last hour. An alert fires for each abort: that save is lost, the one before holds.",
        ("increase(hyperframes_checkpoint_commits_total[1h])", "committed"),
        ("increase(hyperframes_checkpoint_aborts_total[1h])", "aborted: {{reason}}"),
    )  # fmt: skip
    yield panel(
        "Time of a save", "s", "From its begin to its commit, the slowest rank included.",
        (f"{save}_sum / ({save}_count > 0)", "mean since the start"),
        (quantile(0.99, save), "99 %"),
    )  # fmt: skip


def control_plane() -> Iterator[dict[str, Any]]:
    heartbeat, commit = (
        "hyperframes_heartbeat_gap_seconds",
        ("hyperframes_store_commit_duration_seconds"),
    )
    yield panel(
        "Nodes by state", "short", "SUSPECTED and OFFLINE should be 0.",
        ("sum by (state) (hyperframes_nodes)", "{{state}}"), stack=True,
    )  # fmt: skip
    yield panel(
        "Heartbeats", "s", "Between two of a node, and how old the last answered one is.",
        (quantile(0.99, heartbeat), "99 % at the coordinator"),
        (f"hyperframes_heartbeat_age_seconds{{{NODE}}}", "{{node}}"),
    )  # fmt: skip
    yield panel(
        "Store commits", "s", "Every change of a job waits for one. An alert fires above 0.1 s.",
        (quantile(0.5, commit), "50 %"), (quantile(0.99, commit), "99 %"),
    )  # fmt: skip
    yield panel(
        "Calls by method", "reqps", "Answered by the coordinator.",
        ("sum by (method, code) (rate(hyperframes_rpcs_total[$__rate_interval]))",
         "{{method}} {{code}}"),
    )  # fmt: skip
    yield panel(
        "Registered agents", "short", "Agents that the coordinator knows.",
        (f"sum(hyperframes_registered{{{NODE}}})", "agents"), kind="stat", width=6,
    )  # fmt: skip
    yield panel(
        "Leadership epoch", "none", "Rises by one at every start of the coordinator.",
        ("hyperframes_leadership_epoch", "epoch"), kind="stat", width=6,
    )  # fmt: skip
    yield panel(
        "Stalls of the coordinator", "short",
        "Times that it noticed it had stood still. An alert fires for each.",
        ("hyperframes_coordinator_stalls_total", "stalls"), kind="stat", width=6,
    )  # fmt: skip
    yield panel(
        "Leases on record", "bytes", "As the coordinator has them.",
        ("hyperframes_coordinator_lent_bytes", "lent"), kind="stat", width=6,
    )  # fmt: skip
    yield panel(
        "Lease records closed", "short",
        "By the coordinator, in the last hour. agent_reset: its agent started anew without it.",
        ("increase(hyperframes_lease_records_ended_total[1h])", "{{reason}}"),
    )  # fmt: skip


ROWS = (
    ("Memory", memory),
    ("Level", level),
    ("Transfers", transfers),
    ("Exposed waits", speed),
    ("Plans", plans),
    ("Jobs", jobs),
    ("Checkpoints", checkpoints),
    ("Control plane", control_plane),
)


def placed() -> list[dict[str, Any]]:
    """Rows and their panels with ids and places: left to right, 8 high (a stat: 4)."""
    result: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS:
        result.append(
            {
                "id": len(result) + 1, "type": "row", "title": title, "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": [],
            }
        )  # fmt: skip
        y, x, tallest = y + 1, 0, 0
        for each in panels():
            width, height = each.pop("width"), 4 if each["type"] == "stat" else 8
            if x + width > 24:
                y, x, tallest = y + tallest, 0, 0
            result.append(
                {
                    "id": len(result) + 1, **each,
                    "gridPos": {"h": height, "w": width, "x": x, "y": y},
                }
            )  # fmt: skip
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return result


def variable(name: str, label: str, query: str, all_value: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"qryType": 1, "query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": all_value,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
        "regex": "",
        "skipUrlSync": False,
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": UID,
        "title": "HyperFrames",
        "description": "Where frames wait, how level memory is, what moves, and who waits for it.",
        "tags": ["hyperframes"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource", "label": "Data source", "type": "datasource",
                    "query": "prometheus", "refresh": 1, "hide": 0, "regex": "", "multi": False,
                    "includeAll": False, "options": [], "skipUrlSync": False,
                },
                variable("node", "Node", "label_values(hyperframes_registered, node)", ".+"),
                variable(
                    "gpu", "GPU",
                    'label_values(hyperframes_lent_capacity_bytes{node=~"$node"}, uuid)', ".+",
                ),
                variable(
                    "job", "Job", 'label_values(hyperframes_job_info{node=~"$node"}, job_id)', ".+"
                ),
            ]
        },
        "panels": placed(),
    }  # fmt: skip


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
