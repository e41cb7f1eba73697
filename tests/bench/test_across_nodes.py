"""The benchmark of a training job across two nodes, on simulated GPUs: its command, its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import across_nodes

SCRIPT = Path(__file__).resolve().parent / "across_nodes.py"


def test_a_job_whose_frames_cross_is_measured_and_bit_equal(tmp_path: Path) -> None:
    out = tmp_path / "across_nodes_host.json"
    words = ["--backend=host", "--modes=nothing,far", "--rounds=1", "--steps=2", "--warm=1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words, f"--out={out}"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report: dict[str, Any] = json.loads(out.read_text())
    assert report["name"] == "across_nodes_host"
    rows = {row["mode"]: row for row in report["rows"]}
    assert set(rows) == {"nothing", "far"}
    assert rows["nothing"]["peer_bytes"] == 0 < rows["far"]["peer_bytes"]
    assert {lease["device"] for lease in rows["far"]["leases"]} <= {"SIM-a-0", "SIM-b-0"}
    for row in rows.values():
        assert row["backend"] == "host", "simulated figures say so"
        assert row["tokens_per_s"] > 0 and row["step_p99_over_p50"] >= 1 and row["steps"] == 2
    assert set(report["ratios"]) == {
        "far_256_step_p99_over_p50", "far_256_throughput_vs_nothing",
    }  # fmt: skip


def test_ratios_compare_far_with_every_other_mode_of_its_length() -> None:
    rows = [
        {"length": length, "mode": mode, "tokens_per_s": speed, "step_p99_over_p50": 1.1}
        for length in (1024, 2048)
        for mode, speed in (("nothing", 10.0), ("near", 8.0), ("host", 5.0), ("far", 4.0))
        if (length, mode) != (2048, "far")
    ]
    assert across_nodes.ratios(rows) == {
        "far_1024_step_p99_over_p50": 1.1,
        "far_1024_throughput_vs_near": 0.5,
        "far_1024_throughput_vs_host": 0.8,
        "far_1024_throughput_vs_nothing": 0.4,
    }


def test_the_99th_percentile_is_a_step_that_was_measured() -> None:
    assert across_nodes.percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert across_nodes.percentile([float(n) for n in range(1, 201)], 0.99) == 198.0
    assert across_nodes.percentile([5.0], 0.5) == 5.0
