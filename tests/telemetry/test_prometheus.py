"""A real Prometheus scrapes a real cluster that trains: every expression has data there.

With HYPERFRAMES_PICTURE=FILE.svg in the environment the main panels are drawn into that file, from
40 seconds of a run.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import draw
import generate
from example_jobs import shell_job, training_job
from local_cluster import LocalCluster, Node, wait_until
from local_prometheus import Prometheus
from telemetry.worker_jobs import worker_job

DATA_TIMEOUT_S = 45.0
NAME = re.compile(r"\b(?:hyperframes[a-z0-9_:]+|up)\b(?=[{\[ )]|$)")


def filled_in(expression: str) -> str:
    return draw.filled_in(expression, "15s")


def dashboard_expressions() -> dict[str, str]:
    """By "title: legend"."""
    return {
        f"{panel['title']}: {target['legendFormat']}": filled_in(target["expr"])
        for panel in json.loads(generate.TARGET.read_text())["panels"]
        for target in panel.get("targets", [])
    }


@dataclass
class Watched:
    cluster: LocalCluster
    prometheus: Prometheus
    job_id: str
    began: float

    def has_had_number(self, expression: str) -> bool:
        """At any moment since the watching began: rates of what happens once are soon over."""
        return any(
            not math.isnan(float(value))
            for series in self.prometheus.query_range(expression, self.began, time.time())
            for _, value in series["values"]
        )

    def rules(self, kind: str) -> list[dict[str, Any]]:
        groups = self.prometheus.get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["type"] == kind]

    def active(self) -> set[str]:
        """Alerts whose expression holds now, whether for long enough or not."""
        return {rule["name"] for rule in self.rules("alerting") if rule["state"] != "inactive"}


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    directory = Path(tempfile.mkdtemp(prefix="hf-"))
    nodes = (Node("a", "2 x 256MiB"), Node("b", "2 x 128MiB"))
    try:
        with (
            LocalCluster(directory / "c", nodes) as cluster,
            Prometheus(directory / "p", cluster) as prometheus,
        ):
            began = time.time()
            # A first event is an increase only to who has seen the zero before it.
            wait_until(
                lambda: [sample["value"][1] for sample in prometheus.query("up")] == ["1"] * 3,
                10,
                "a scrape of every daemon",
            )
            ended = [
                cluster.submit(shell_job("exit 0")),
                cluster.submit(worker_job("saves", directory)),
            ]
            job_id = cluster.submit(
                training_job(
                    "hyperframes", directory / "run-{rank}.json", "--activation-budget", "8MiB",
                    steps=100_000,
                )
            )  # fmt: skip
            for each in ended:
                cluster.wait_job(each, 30)
            yield Watched(cluster, prometheus, job_id, began)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_every_expression_of_the_dashboard_returns_data(watched: Watched) -> None:
    waiting = dashboard_expressions()
    assert len(waiting) > 40

    def all_seen() -> bool:
        for name in [name for name, text in waiting.items() if watched.has_had_number(text)]:
            del waiting[name]
        return not waiting

    try:
        wait_until(all_seen, DATA_TIMEOUT_S, "every expression to have data", 0.5)
    except TimeoutError:
        state = watched.cluster.job(watched.job_id)
        pytest.fail(f"no data for {waiting}; the job is {state['state']}: {state['message']}")


def test_every_variable_of_the_dashboard_has_values(watched: Watched) -> None:
    lists = json.loads(generate.TARGET.read_text())["templating"]["list"]
    for each in lists[1:]:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
        assert found is not None, each["query"]
        wanted = {"node": {"a", "b"}, "job": {watched.job_id}}.get(each["name"])
        values: set[str] = set()

        def offered(
            expression: str = filled_in(found[1]),
            label: str = found[2],
            values: set[str] = values,
            wanted: set[str] | None = wanted,
        ) -> bool:
            values.clear()
            samples = watched.prometheus.query(expression)
            values.update(sample["metric"].get(label, "") for sample in samples)
            return bool(values) and "" not in values and wanted in (None, values)

        try:
            # A job that has just ended is offered until the next scrape.
            wait_until(offered, 15, each["name"], 0.3)
        except TimeoutError:
            pytest.fail(f"{each['name']} offers {values}")


def test_every_rule_is_evaluated_over_metrics_that_have_data(watched: Watched) -> None:
    rules = [*watched.rules("alerting"), *watched.rules("recording")]
    missing = {name for rule in rules for name in NAME.findall(rule["query"])}
    assert len(missing) > 10
    for rule in rules:
        watched.prometheus.query(rule["query"])
        assert NAME.search(rule["query"]), f"{rule['name']} watches nothing"

    def all_seen() -> bool:
        missing.difference_update([name for name in missing if watched.has_had_number(name)])
        everything = [*watched.rules("alerting"), *watched.rules("recording")]
        return not missing and all(rule["health"] == "ok" for rule in everything)

    try:
        wait_until(all_seen, 15, "every rule to be evaluated", 0.3)
    except TimeoutError:
        pytest.fail(f"no data for {missing}, or rules that fail: {watched.rules('alerting')}")


def test_every_alert_says_how_bad_it_is_and_what_to_do(watched: Watched) -> None:
    alerts = watched.rules("alerting")
    assert len(alerts) >= 8
    for alert in alerts:
        assert alert["name"].startswith("Hyperframes")
        assert alert["duration"] > 0, alert["name"]
        assert alert["labels"]["severity"] in {"info", "warning", "critical"}
        assert len(alert["annotations"]["summary"]) < 100
        assert len(alert["annotations"]["description"]) > 80, alert["name"]


def test_one_metric_has_one_type_and_one_meaning_across_the_daemons(watched: Watched) -> None:
    for name, kinds in watched.prometheus.get("metadata").items():
        assert len({(kind["type"], kind["help"]) for kind in kinds}) == 1, (name, kinds)
        if name.startswith("hyperframes_"):
            assert name.endswith("_total") == (kinds[0]["type"] == "counter"), (name, kinds)
    by_daemon = 'group by (__name__, job) ({__name__=~"hyperframes_.+"})'
    assert watched.prometheus.query(f"count by (__name__) ({by_daemon}) > 1") == []


def test_the_main_panels_can_be_drawn_from_what_prometheus_holds(watched: Watched) -> None:
    picture = os.environ.get("HYPERFRAMES_PICTURE")
    if picture:
        time.sleep(max(0.0, watched.began + 40 - time.time()))
    span = (watched.began, time.time())

    def ask(expression: str) -> list[dict[str, Any]]:
        return watched.prometheus.query_range(expression, *span)

    drawn = draw.draw(ask, lambda text: draw.filled_in(text, "5s"), span)
    root = ElementTree.fromstring(drawn)
    assert len(root.findall(".//{*}polyline")) >= len(draw.MAIN)
    if picture:
        Path(picture).write_text(drawn)


def test_no_alert_fires_on_a_healthy_cluster(watched: Watched) -> None:
    assert watched.prometheus.query('ALERTS{alertstate="firing"}') == []
    assert not watched.active() & {"HyperframesDaemonDown", "HyperframesNodeOffline"}
