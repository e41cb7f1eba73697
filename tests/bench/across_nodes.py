#!/usr/bin/env python3
"""A training job whose frames cross two nodes, against the same job near its lenders.

    export PYTHONPATH=client/python:deploy:tests
    python tests/bench/across_nodes.py --backend=cuda   # two GPUs of one machine as two nodes
    python tests/bench/across_nodes.py --backend=host   # simulated GPUs and links

Every mode is a job through a coordinator and agents of its own, which keeps a share of its
activations and moves the rest: `far` to a GPU of another node (two agents, hftransfer between
them), `near` to the other GPU of its own node, `host` to host memory; `nothing` keeps everything.
The modes take turns, one job each a round. A mode's gradients are bit-equal to nothing's in every
step, or it has no times. Jitter is the 99th percentile of the step times over their median.

On real GPUs the two agents count as two nodes because NCCL is told different host names, so that
it leaves its peer and shared-memory transports off: true multi-node hardware was not available.
Writes docs/benchmarks/across_nodes.json, with --backend=host across_nodes_host.json.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("client/python", "deploy", "tests")]

from bench.training.report import merge  # noqa: E402
from local_cluster import LocalCluster, Node  # noqa: E402

MODES = ("nothing", "near", "host", "far")
KEY = ("backend", "length", "mode")


def nccl_library() -> str:
    """The one that came with torch; empty: hftransfer looks for the system's."""
    import torch

    found = Path(torch.__file__).parents[1].glob("nvidia/*/lib/libnccl.so.2")
    return str(next(found, ""))


def node(args: argparse.Namespace, name: str, gpus: list[int], **flags: str) -> Node:
    """An agent that has these GPUs of the machine, or simulates as many."""
    if args.backend == "cuda":
        environment = {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            "NCCL_HOSTID": name,
            "HYPERFRAMES_NCCL_LIBRARY": args.nccl_library or nccl_library(),
        }
        return Node(name, "", {"backend": "cuda", **flags}, environment)
    links = {"peer-bandwidth": args.peer_bandwidth, "host-bandwidth": args.host_bandwidth}
    return Node(name, ",".join([args.gpu_bytes] * len(gpus)), {**links, **flags})


def nodes_of(args: argparse.Namespace, mode: str) -> list[Node]:
    nothing_more = {"host-bytes": "0B"}
    if mode == "far":
        flags = {**nothing_more, "network-bandwidth": args.network_bandwidth}
        return [node(args, "a", [0], **flags), node(args, "b", [1], **flags)]
    if mode == "near":
        return [node(args, "a", [0, 1], **nothing_more)]
    return [node(args, "a", [0], **{"host-bytes": args.host_bytes})]


def run_job(args: argparse.Namespace, mode: str, folder: Path) -> dict[str, Any]:
    """One job of its own cluster, and its report. RuntimeError has the end of its log."""
    report = folder / "report.json"
    words = [
        f"--{name}={getattr(args, name)}"
        for name in ("share", "length", "layers", "hidden", "heads", "warm", "steps")
    ]
    off = ["/usr/bin/env", "HYPERFRAMES_MODE=off"] if mode == "nothing" else []
    worker = str(ROOT / "tests/bench/across_nodes_worker.py")
    paths = [str(ROOT / part) for part in ("client/python", "tests")]
    spec = {
        "name": f"across-nodes-{mode}",
        "command": [*off, sys.executable, worker, f"--report={report}", *words],
        "env": {"PYTHONPATH": os.pathsep.join(paths)},
        "ranks": 1,
    }
    with LocalCluster(folder / "c", nodes_of(args, mode), programs=args.programs) as cluster:
        job = cluster.wait_job(cluster.submit(spec), args.patience)
        if job["state"] != "JOB_STATE_SUCCEEDED":
            raise RuntimeError(
                f"{mode}: {job['message']}\n{cluster.whole_log(job['id'], 0)[-3000:]}"
            )
        seen: dict[str, Any] = json.loads(report.read_text())
        own = job["workers"][0]["node"]
    elsewhere = [lease for lease in seen["leases"] if lease["node"] != own]
    if mode != "nothing" and (not seen["leases"] or bool(elsewhere) != (mode == "far")):
        raise RuntimeError(f"{mode}: the job on node {own} leased {seen['leases']}")
    return seen


def percentile(values: list[float], share: float) -> float:
    """The smallest of `values` that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered), -(-int(share * 1000) * len(ordered) // 1000)) - 1)]


def row_of(args: argparse.Namespace, mode: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = [second for run in runs for second in run["step_s"]]
    median, late = statistics.median(seconds), percentile(seconds, 0.99)
    return {
        "backend": args.backend,
        "length": args.length,
        "mode": mode,
        "steps": len(seconds),
        "tokens_per_s": runs[0]["tokens"] * len(seconds) / sum(seconds),
        "step_median_ms": 1e3 * median,
        "step_p99_ms": 1e3 * late,
        "step_p99_over_p50": late / median,
        "peer_bytes": runs[0]["peer_bytes"],
        "host_bytes": runs[0]["host_bytes"],
        "leases": runs[0]["leases"],
        "network_bandwidth": args.network_bandwidth if mode == "far" else "",
    }


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for length in sorted({row["length"] for row in rows}):
        by = {row["mode"]: row for row in rows if row["length"] == length}
        far = by.get("far")
        if far is None:
            continue
        found[f"far_{length}_step_p99_over_p50"] = far["step_p99_over_p50"]
        for mode in ("near", "host", "nothing"):
            if mode in by:
                name = f"far_{length}_throughput_vs_{mode}"
                found[name] = far["tokens_per_s"] / by[mode]["tokens_per_s"]
    return found


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flag = parser.add_argument
    flag("--backend", choices=["host", "cuda"], required=True)
    flag("--modes", default=",".join(MODES), help="nothing comes first: the others are held to it")
    flag("--rounds", type=int, default=2, help="jobs of each mode")
    flag("--steps", type=int, default=0, help="timed steps of each job; default 50, host 10")
    flag("--warm", type=int, default=3, help="steps before them")
    flag("--share", type=float, default=0.4, help="of the activations, that stays")
    flag("--length", type=int, default=0, help="tokens; default 16384, host 256")
    flag("--layers", type=int, default=0)
    flag("--hidden", type=int, default=0)
    flag("--heads", type=int, default=0)
    flag("--network-bandwidth", default="", help="told to the agents; default 2.5GB, host 1GB")
    flag("--peer-bandwidth", default="2GB", help="of simulated GPUs")
    flag("--host-bandwidth", default="1GB", help="of simulated GPUs")
    flag("--gpu-bytes", default="512MiB", help="of a simulated GPU")
    flag("--host-bytes", default="", help="that the mode host may use; default 64GiB, host 512MiB")
    flag("--nccl-library", default="", help="default: the one that came with torch")
    flag("--programs", type=Path, help="folder of the daemons; default: those that Bazel built")
    flag("--patience", type=float, default=200.0, help="seconds for one job")
    flag("--out", type=Path)
    args = parser.parse_args(words)
    real = args.backend == "cuda"
    defaults = {
        "steps": 50 if real else 10, "length": 16384 if real else 256,
        "layers": 16 if real else 4, "hidden": 4096 if real else 128, "heads": 32 if real else 4,
        "network_bandwidth": "2.5GB" if real else "1GB",
        "host_bytes": "64GiB" if real else "512MiB",
        "out": ROOT / f"docs/benchmarks/across_nodes{'' if real else '_host'}.json",
    }  # fmt: skip
    for name, value in defaults.items():
        setattr(args, name, getattr(args, name) or value)
    args.modes = args.modes.split(",")
    if args.modes[0] != "nothing" or not set(args.modes) <= set(MODES):
        parser.error(f"--modes: nothing, then some of {', '.join(MODES[1:])}")
    return args


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in args.modes}
    rows: list[dict[str, Any]] = []
    for turn in range(args.rounds):
        for mode in args.modes:
            with tempfile.TemporaryDirectory(prefix="hf-") as folder:
                run = run_job(args, mode, Path(folder))
            if run["digests"] != (runs["nothing"] or [run])[0]["digests"]:
                raise RuntimeError(f"{mode}: other gradients than nothing's")
            runs[mode].append(run)
            rows = [row_of(args, m, runs[m]) for m in args.modes if runs[m]]
            write(args, rows)  # What comes later may take too long.
            median = 1e3 * statistics.median(run["step_s"])
            print(f"round {turn + 1}: {mode:<8} {median:9.1f} ms a step, bit-equal", flush=True)
    return rows


def write(args: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    command = " ".join(["python", "tests/bench/across_nodes.py", *sys.argv[1:]])
    return merge(
        args.out, name=args.out.stem, command=command, rows=rows, key=KEY, ratios=ratios
    )  # fmt: skip


def main() -> None:
    faulthandler.enable()
    args = parse()
    rows = measure(args)
    print(f"{'mode':<8} {'tokens/s':>10} {'median ms':>10} {'p99 ms':>10} {'p99/p50':>8}")
    for row in rows:
        print(
            f"{row['mode']:<8} {row['tokens_per_s']:>10.0f} {row['step_median_ms']:>10.1f}"
            f" {row['step_p99_ms']:>10.1f} {row['step_p99_over_p50']:>8.2f}"
        )
    for name, value in write(args, rows)["ratios"].items():
        print(f"ratio {name} {value:.4f}")


if __name__ == "__main__":
    main()
