"""A Prometheus of its own for one cluster, with the shipped configuration at a faster pace."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from local_cluster import ROOT, STOP_TIMEOUT_S, LocalCluster

START_TIMEOUT_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """For a `with` statement: scrapes and evaluates once a second, stopped by its pid.

    Args:
        directory: configuration, data and log; nobody else's.
        cluster: what to scrape; its daemons keep their ports when they are started again.
    """

    def __init__(self, directory: Path, cluster: LocalCluster) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._configure(cluster)

    def _configure(self, cluster: LocalCluster) -> None:
        shutil.copytree(ROOT / "deploy" / "monitoring", self.directory / "deploy" / "monitoring")
        shutil.copytree(ROOT / "dashboards", self.directory / "dashboards")
        targets = self.directory / "deploy" / "monitoring" / "targets"
        coordinator = [{"targets": [cluster.coordinator.ready["http"]]}]
        agents = [
            {"targets": [agent.ready["http"]], "labels": {"node": name}}
            for name, agent in cluster.agents.items()
        ]
        (targets / "coordinator.json").write_text(json.dumps(coordinator))
        (targets / "agents.json").write_text(json.dumps(agents))
        for path, paces in (
            (
                self.config,
                ("scrape_interval: 10s", "scrape_timeout: 5s", "evaluation_interval: 15s"),
            ),
            (self.directory / "dashboards" / "alerts.yml", ("interval: 15s",)),
        ):
            text = path.read_text()
            for pace in paces:
                assert pace in text, f"{path.name} no longer says {pace!r}"
                text = text.replace(pace, pace.split(":")[0] + ": 1s")
            path.write_text(text)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def config(self) -> Path:
        return self.directory / "deploy" / "monitoring" / "prometheus.yml"

    def __enter__(self) -> Prometheus:
        with (self.directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self.config}",
                    f"--storage.tsdb.path={self.directory / 'data'}",
                    f"--web.listen-address={self.address}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._stop()
                said = (self.directory / "prometheus.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"prometheus did not become ready:\n{said}")
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _ready(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            url = f"http://{self.address}/-/ready"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return int(answer.status) == 200
        return False

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def get(self, path: str, **arguments: str) -> Any:
        """`data` of an answer of its HTTP interface. ValueError: what it says is wrong."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{arguments}: {error.read().decode(errors='replace')}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query. ValueError: the expression does not parse."""
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def query_range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """The series of a query over a span of Unix seconds, every half second of it."""
        data = self.get(
            "query_range", query=expression, start=f"{start:.3f}", end=f"{end:.3f}", step="0.5"
        )
        result: list[dict[str, Any]] = data["result"]
        return result
