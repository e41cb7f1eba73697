#!/usr/bin/env python3
"""Brings what run.py collected on other machines into docs/benchmarks.

    python tests/gpus/merge.py first/results.tar.gz second/results.tar.gz

Rows that a machine made are added, or take the place of those with the same key; ratios are made
anew from all rows. Files of one command are replaced. Needs torch, but no GPU.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("client/python", "deploy", "tests")]

from bench import across_nodes, finetune, llama  # noqa: E402
from bench.training.report import TWIN, twin_ratios  # noqa: E402

SHARED = {"finetune": finetune, "llama": llama, "across_nodes": across_nodes}


def reports(archive: Path) -> dict[str, dict[str, Any]]:
    """By file name."""
    found = {}
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            file = opened.extractfile(member)
            if member.name.endswith(".json") and file is not None:
                found[Path(member.name).name] = json.load(file)
    return found


def merged(
    module: Any, base: dict[str, Any], news: list[dict[str, Any]], real: Path | None = None
) -> dict[str, Any]:
    """The report with the rows of all; later ones win. What a machine only carried along, from
    ``base`` or from an earlier commit, is no news. ``real``: the report is of one GPU seen as two,
    and that is the one of real GPUs; the rows of the two are never mixed."""
    ratios = module.ratios if real is None else twin_ratios(real, module.KEY, module.ratios)

    def key(row: dict[str, Any]) -> str:
        return json.dumps([row.get(name) for name in module.KEY])

    carried = base.get("rows", [])
    rows = {key(row): row for row in carried}
    for report in news:
        rows |= {
            key(row): row
            for row in report["rows"]
            if row not in carried
            and row.get("commit") == report.get("commit")
            and bool(row.get("twin")) == (real is not None)
        }
    everything = [rows[name] for name in sorted(rows)]
    return {**base, **news[-1], "rows": everything, "ratios": ratios(everything)}


def main(archives: list[str], folder: Path = ROOT / "docs/benchmarks") -> None:
    by_file: dict[str, list[dict[str, Any]]] = {}
    for archive in archives:
        for name, report in reports(Path(archive)).items():
            by_file.setdefault(name, []).append(report)
    for name in tuple(by_file):  # A twin's ratios compare with the rows of real GPUs.
        lent = f"{Path(name).stem}{TWIN}.json"
        if (folder / lent).exists():
            by_file.setdefault(lent, [])
    for name, news in sorted(by_file.items()):  # Those of real GPUs come first.
        path = folder / name
        base = json.loads(path.read_text()) if path.exists() else {}
        stem = path.stem.removesuffix(TWIN)
        module = SHARED.get(stem)
        real = path.with_name(f"{stem}.json") if stem != path.stem else None
        fresh = [report for report in news if report != base] or [base]
        report = merged(module, base, fresh, real) if module is not None else fresh[-1]
        path.write_text(json.dumps(report, indent=1 if module is not None else 2) + "\n")
        print(f"{name}: {len(report['rows'])} rows")


if __name__ == "__main__":
    main(sys.argv[1:])
