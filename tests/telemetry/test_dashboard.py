"""What holds for dashboard and alert rules without a cluster."""

from __future__ import annotations

import itertools
import json
import subprocess
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

import generate
from local_cluster import ROOT

# Plugins that Grafana brings along, by what they call themselves.
PANEL_TYPES = {"row", "stat", "timeseries"}
UNITS = {value for name, value in vars(units).items() if name[0] != "_"}
DASHBOARD: dict[str, Any] = json.loads(generate.TARGET.read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]


def promtool(*words: str) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_well_formed() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", "dashboards/alerts.yml")


def test_every_alert_fires_once_and_none_on_a_quiet_cluster() -> None:
    promtool("test", "rules", "dashboards/alerts_test.yml")
    tested = (ROOT / "dashboards" / "alerts_test.yml").read_text()
    alerts = [
        line.split("alert:")[1].strip()
        for line in (ROOT / "dashboards" / "alerts.yml").read_text().splitlines()
        if "- alert:" in line
    ]
    assert len(alerts) >= 8
    assert [name for name in alerts if f'alertname="{name}"' not in tested] == []


def test_the_shipped_configuration_is_valid() -> None:
    promtool("check", "config", "deploy/monitoring/prometheus.yml")


def test_the_file_in_the_tree_is_what_the_generator_writes() -> None:
    assert generate.TARGET.read_text() == generate.text(), "run: python dashboards/generate.py"


def test_links_to_the_dashboard_stay_valid() -> None:
    assert DASHBOARD["uid"] == "hyperframes"
    ids = [each["id"] for each in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_memory_comes_first_and_every_row_has_panels() -> None:
    kinds = [each["type"] for each in DASHBOARD["panels"]]
    rows = [each["title"] for each in DASHBOARD["panels"] if each["type"] == "row"]
    assert rows[0] == "Memory" and rows[-1] == "Control plane"
    assert all(after != "row" for kind, after in itertools.pairwise(kinds) if kind == "row")


def missing(mine: Any, theirs: Any, path: str = "") -> list[str]:
    """Paths of what is in `mine` and not, or otherwise, in `theirs`, which may have more."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return [
            found
            for key, value in mine.items()
            for found in (
                missing(value, theirs[key], f"{path}/{key}") if key in theirs else [f"{path}/{key}"]
            )
        ]
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return [
            found
            for at, value in enumerate(mine)
            for found in missing(value, theirs[at], f"{path}/{at}")
        ]
    return [] if mine == theirs else [f"{path}: {mine!r} became {theirs!r}"]


def through_grafana_s_schema(dashboard: dict[str, Any]) -> dict[str, Any]:
    """As grafana-foundation-sdk reads it and writes it again: what its schema of Grafana does not
    know is gone.
    """
    register_default_plugins()
    written = JSONEncoder().encode(Dashboard.from_json(dashboard))
    result: dict[str, Any] = json.loads(written)
    return result


def test_grafana_s_own_schema_knows_every_field() -> None:
    assert missing(DASHBOARD, through_grafana_s_schema(DASHBOARD)) == []


@pytest.mark.parametrize(
    ("where", "name"),
    [((), "refreshh"), (("panels", 1, "fieldConfig", "defaults"), "unitt"),
     (("panels", 1, "options", "legend"), "place"), (("panels", 1, "targets", 0), "expression"),
     (("templating", "list", 1), "querry")],
)  # fmt: skip
def test_a_field_that_grafana_does_not_know_is_noticed(
    where: tuple[str | int, ...], name: str
) -> None:
    changed = json.loads(json.dumps(DASHBOARD))
    at = changed
    for step in where:
        at = at[step]
    at[name] = "x"
    lost = missing(changed, through_grafana_s_schema(changed))
    assert lost == ["/".join(["", *map(str, where), name])]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_has_unit_description_and_the_chosen_datasource(panel: dict[str, Any]) -> None:
    assert panel["type"] in PANEL_TYPES
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["description"].endswith(".")
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        assert target["legendFormat"]


def test_no_two_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for each in DASHBOARD["panels"]:
        place = each["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, each["title"]
        taken |= cells


def test_the_variables_are_datasource_node_gpu_and_job() -> None:
    names = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "node", "gpu", "job"]
