"""What holds for dashboard and alert rules without a cluster."""

from __future__ import annotations

import itertools
import json
import subprocess
from typing import Any

import pytest

import generate
from local_cluster import ROOT

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


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_has_unit_description_and_the_chosen_datasource(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
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
