"""The training benchmarks on a processor: every mode that exists there, the files, the names."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hyperframes as hf
from bench import finetune, llama
from bench.training.longest import Search
from bench.training.modes import Modes
from bench.training.report import lengths_of, merge
from bench.training.workload import FineTune

HERE = Path(__file__).resolve().parent
FIELDS = {"name", "command", "commit", "machine", "rows", "ratios"}


def run(script: str, out: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script), "--tiny", f"--out={out}", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "HYPERFRAMES_HOST_DEVICES": "2 x 256MiB"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report: dict[str, Any] = json.loads(out.read_text())
    assert set(report) == FIELDS
    return report


def by_mode(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["mode"]: row for row in report["rows"]}


def assert_measured(rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        assert "failed" not in row, f"{name}: {row['failed']}"
        assert row["gradients"] in ("reference", "bit-equal"), name
        assert row["tokens_per_s"] > 0 and row["peak_bytes"] > 0 and row["jitter"] >= 1


def test_every_eager_mode_of_the_fine_tune_has_the_gradients_of_its_reference(
    tmp_path: Path,
) -> None:
    names = [name for name in Modes.NAMES if not name.endswith("_compiled")]
    words = ("--lengths=256", "--rounds=1", "--steps=1", f"--modes={','.join(names)}")
    report = run("finetune.py", tmp_path / "finetune.json", *words)
    rows = by_mode(report)
    assert set(rows) == set(names)
    assert_measured(rows)
    assert rows["peer"]["peak_vs"]["checkpoint"] <= 1.05
    assert rows["host"]["peak_vs"]["checkpoint"] <= 1.10
    assert rows["host"]["host_bytes"] + rows["host"]["recomputed_bytes"] > 0
    assert rows["peer_only"]["peer_bytes"] > 0 and rows["peer_only"]["recomputed_bytes"] == 0


def test_compiled_modes_have_a_reference_of_their_own(tmp_path: Path) -> None:
    names = "checkpoint_compiled,memory_budget_50_compiled,peer_compiled,host_budget_75_compiled"
    words = ("--lengths=256", "--rounds=1", "--steps=1", f"--modes=nothing_compiled,{names}")
    rows = by_mode(run("finetune.py", tmp_path / "finetune.json", *words))
    assert_measured(rows)
    assert len(rows) == 5
    for name in ("peer_compiled", "host_budget_75_compiled"):
        assert set(rows[name]["throughput_vs"]) == {"nothing_compiled", "checkpoint_compiled"}
    assert rows["host_budget_75_compiled"]["host_bytes"] > 0


def test_several_commands_fill_one_file(tmp_path: Path) -> None:
    out = tmp_path / "finetune.json"
    few = ("--rounds=1", "--steps=1", "--lengths=256")
    run("finetune.py", out, "--part=jobs", "--jobs=2", "--modes=nothing,checkpoint,host", *few)
    run("finetune.py", out, "--part=article", "--own-share=0.5", *few)
    longest = "--modes=checkpoint,checkpoint_inputs_on_host,peer,host"
    lengths = "--lengths=128,256,512,1024"
    report = run("finetune.py", out, "--part=longest", "--cap=5MiB", longest, lengths)
    parts = {row["part"] for row in report["rows"]}
    assert parts == {"jobs", "article", "longest"}
    jobs = {row["mode"]: row for row in report["rows"] if row["part"] == "jobs"}
    assert jobs["host"]["gpus"] == 2 and jobs["host"]["peak_vs"]["checkpoint"] <= 1.10
    article = next(r for r in report["rows"] if r["mode"] == "peers_hold_the_rest")
    assert article["peer_bytes"] > 0
    assert article["own_activation_peak_bytes"] <= article["activation_budget_bytes"]
    failed = [r["mode"] for r in report["rows"] if r["part"] == "longest" and not r["trains"]]
    assert failed and len(failed) == len(set(failed)), "none longer is tried after one that failed"
    assert report["ratios"]["longest_sequence_vs_checkpoint"] >= 1
    assert report["ratios"]["longest_sequence_host_vs_checkpoint"] >= 1


needs_transformers = pytest.mark.skipif(
    not (importlib.util.find_spec("transformers") and importlib.util.find_spec("peft")),
    reason="needs transformers and peft",
)


@needs_transformers
def test_every_mode_of_llama_has_the_gradients_of_its_reference(tmp_path: Path) -> None:
    words = ("--lengths=256", "--rounds=1", "--steps=1")
    rows = by_mode(run("llama.py", tmp_path / "llama.json", *words))
    assert set(rows) == {"nothing", "checkpoint", "peer", "host", "auto"}
    assert_measured(rows)


@needs_transformers
def test_fsdp2_finds_the_largest_batch_of_each_mode(tmp_path: Path) -> None:
    words = ("--part=fsdp2", "--gpus=2", "--lengths=128", "--steps=1", "--cap=6MiB")
    report = run("llama.py", tmp_path / "llama.json", *words)
    rows = [row for row in report["rows"] if row["part"] == "fsdp2"]
    for mode in ("checkpoint", "auto"):
        tried = {row["batch"]: row for row in rows if row["mode"] == mode}
        largest = max(batch for batch, row in tried.items() if row["trains"])
        assert not tried[largest + 1]["trains"]
        assert all(row["gradients"] == "bit-equal" and row["gpus"] == 2 for row in tried.values())
    assert set(report["ratios"]) == {
        "fsdp2_largest_batch_vs_checkpoint",
        "fsdp2_throughput_vs_checkpoint",
    }


def measured(length: int, mode: str, part: str = "modes") -> dict[str, Any]:
    return {
        "part": part, "length": length, "mode": mode, "throughput_vs_ceiling": 0.99,
        "throughput_vs": {"nothing": 0.97, "checkpoint": 1.3}, "peak_vs": {"checkpoint": 1.04},
    }  # fmt: skip


def test_ratios_have_their_fixed_names() -> None:
    rows = [measured(1024 * k, mode) for k in (8, 32, 64, 128) for mode in ("peer", "host")]
    rows += [measured(32768, "host", "jobs")]
    rows += [
        {"part": "lender", "length": 0, "mode": "matmul_while_others_put", "slowdown": 0.02},
        *(
            {"part": "longest", "length": length, "mode": mode, "trains": trains}
            for length, mode, trains in (
                (4096, "checkpoint", True),
                (8192, "checkpoint", False),
                (5120, "checkpoint_inputs_on_host", True),
                (6144, "checkpoint_inputs_on_host", False),
                (6144, "peer", True),
                (5120, "host", True),
            )
        ),
    ]
    found = finetune.ratios(rows)
    fixed = """
        peer_8k_throughput_vs_nothing peer_8k_peak_vs_checkpoint peer_32k_throughput_vs_nothing
        peer_32k_peak_vs_checkpoint peer_32k_throughput_vs_ceiling host_32k_throughput_vs_nothing
        host_32k_peak_vs_checkpoint four_jobs_32k_throughput_vs_nothing
        four_jobs_32k_peak_vs_checkpoint peer_64k_throughput_vs_checkpoint
        peer_64k_peak_vs_checkpoint peer_128k_throughput_vs_checkpoint peer_128k_peak_vs_checkpoint
        longest_sequence_vs_checkpoint longest_sequence_vs_checkpoint_with_host_inputs
        lender_slowdown
    """
    assert set(fixed.split()) <= set(found)
    assert found["longest_sequence_vs_checkpoint"] == 1.5
    assert found["longest_sequence_vs_checkpoint_with_host_inputs"] == 1.2
    assert found["longest_sequence_host_vs_checkpoint"] == 1.25
    assert found["longest_sequence_host_vs_checkpoint_with_host_inputs"] == 1
    assert {"peer_8k_peak_vs_checkpoint", "peer_32k_throughput_vs_nothing"} <= set(
        llama.ratios(rows)
    )


def test_the_longest_of_a_mode_is_compared_only_where_it_is_known() -> None:
    """A trial that ran out of time says nothing."""

    def row(length: int, mode: str, trains: bool, out_of_time: bool = False) -> dict[str, Any]:
        return {"part": "longest", "length": length, "mode": mode, "trains": trains,
                "out_of_time": out_of_time}  # fmt: skip

    rows = [row(6144, "peer", True), row(4096, "checkpoint", True)]
    assert finetune.ratios(rows) == {}
    assert finetune.ratios([*rows, row(8192, "checkpoint", False, True)]) == {}
    other_settings = [{**row(8192, "checkpoint", False), "allocator": "expandable_segments:True"}]
    assert finetune.ratios([*rows, *other_settings]) == {}
    known = finetune.ratios([*rows, row(8192, "checkpoint", False)])
    assert known == {"longest_sequence_vs_checkpoint": 1.5}


def _no_modes() -> Modes:
    raise AssertionError("HyperFrames makes its own")


def test_the_longest_is_found_though_short_sequences_peak_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short ones at the end of backward with all gradients, long ones at its start."""

    def needed(_: Any, mode: str, length: int) -> int:
        return max(12_900_000_000 + 206_000 * length, 6_400_000_000 + 336_000 * length)

    def trial(search: Any, mode: str, length: int) -> dict[str, Any]:
        trains = needed(search, mode, length) <= cap
        return {"part": "longest", "length": length, "mode": mode, "trains": trains}

    cap = 40 << 30
    monkeypatch.setattr(Search, "_needed", needed)
    monkeypatch.setattr(Search, "trial", trial)
    workload = FineTune(torch.device("cpu"), layers=1, hidden=64, heads=4, dtype=torch.float32)
    search = Search(
        workload, torch.device("cpu"), cap=cap, patience_s=60, make=_no_modes, say=print
    )  # fmt: skip
    rows = {row["length"]: row["trains"] for row in search.run("checkpoint", [])}
    longest = max(length for length, trains in rows.items() if trains)
    assert not rows[longest + 4096] and len(rows) <= 4
    assert needed(None, "", longest) <= cap < needed(None, "", longest + 4096)


def test_long_trials_are_planned_from_a_profile_of_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 256MiB")
    monkeypatch.setattr("bench.training.longest.SHORT", (256, 320))
    profiled: list[int] = []
    profile = FineTune.profile

    def noted(workload: FineTune) -> hf.Profile:
        profiled.append(workload.length)
        return profile(workload)

    monkeypatch.setattr(FineTune, "profile", noted)
    workload = FineTune(torch.device("cpu"), layers=3, hidden=64, heads=4, dtype=torch.float32)
    search = Search(
        workload, torch.device("cpu"), cap=32 << 20, patience_s=60, make=_no_modes, say=print
    )  # fmt: skip
    assert search.trial("host", 1024)["trains"]
    assert search.trial("host", 2048)["length"] == 2048
    assert profiled == [256]


def test_a_profile_of_a_few_blocks_stands_for_all() -> None:
    os.environ.setdefault("HYPERFRAMES_HOST_DEVICES", "2 x 256MiB")
    cpu = torch.device("cpu")
    profiles = []
    for alike in (0, 3):
        workload = FineTune(
            cpu, layers=5, hidden=64, heads=4, dtype=torch.float32, alike=alike
        )  # fmt: skip
        workload.set_length(128)
        profiles.append(workload.profile())
        assert len(workload.blocks()) == 5

    def told(profile: hf.Profile) -> Any:
        blocks = [
            (b.name, b.nbytes, b.gradient_bytes, [s.ordinal for s in b.storages], b.outputs)
            for b in profile.blocks
        ]
        return blocks, profile.resident_bytes, profile.parameters, profile.signature

    assert told(profiles[0]) == told(profiles[1])


def test_what_was_measured_before_a_mode_hangs_is_on_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "finetune.json"
    words = f"--tiny --lengths=256 --modes=nothing,checkpoint --rounds=3 --steps=1 --out={out}"
    args = finetune.parse(words.split())
    workload = FineTune(args.device, layers=2, hidden=64, heads=4, dtype=args.dtype)
    rounds: list[list[dict[str, Any]]] = []

    def write(args: Any, rows: list[dict[str, Any]], quietly: bool = False) -> None:
        rounds.append(rows)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(finetune, "write", write)
    with pytest.raises(KeyboardInterrupt):
        finetune.run_length(args, workload, 256)
    assert [[len(row["round_ms"]) for row in rows] for rows in rounds] == [[1, 1], [2, 2]]


def test_early_turns_measure_the_peak_of_checkpointing_once(tmp_path: Path) -> None:
    words = ("--lengths=256", "--modes=checkpoint,peer", "--rounds=1", "--steps=1", "--warm=0",
             "--tries=1", "--once", "--early", "--alike=3")  # fmt: skip
    rows = by_mode(run("finetune.py", tmp_path / "finetune.json", *words))
    assert_measured(rows)
    assert rows["peer"]["throughput_vs"].keys() == {"checkpoint"}


def test_rows_with_the_same_key_are_replaced_and_ratios_made_anew(tmp_path: Path) -> None:
    def add(*rows: dict[str, Any]) -> dict[str, Any]:
        return merge(
            tmp_path / "some.json", name="some", command="c", rows=list(rows), key=("mode",),
            ratios=lambda rows: {"sum": sum(row["value"] for row in rows)},
        )  # fmt: skip

    add({"mode": "a", "value": 1}, {"mode": "b", "value": 2})
    report = add({"mode": "b", "value": 5})
    assert report["ratios"] == {"sum": 6}
    assert [row["mode"] for row in report["rows"]] == ["a", "b"]
    assert all(row["command"] == "c" and row["machine"] for row in report["rows"])


def test_what_one_gpu_seen_as_two_shows_has_a_file_of_its_own_and_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(mode: str, **more: Any) -> dict[str, Any]:
        row = {"part": "modes", "length": 8192, "mode": mode, "tokens_per_s": 1.0, "gradients": "",
               "peak_bytes": 2, "peak_vs": {"checkpoint": 1.5}, "throughput_vs": {"nothing": 0.1},
               **more}  # fmt: skip
        return merge(
            tmp_path / "finetune.json", name="finetune", command="c", rows=[row], key=finetune.KEY,
            ratios=finetune.ratios,
        )  # fmt: skip

    add("host")
    monkeypatch.setenv("HYPERFRAMES_CUDA_LIBRARY", "/kit/libtwin-cuda.so")
    report = add("peer")
    assert report["name"] == "finetune_twin"
    assert report["ratios"] == {"peer_8k_peak_vs_checkpoint": 1.5}
    (row,) = report["rows"]
    assert row["twin"] and row["peak_bytes"] == 2 and "one GPU seen as two" in row["machine"]
    assert not {"tokens_per_s", "throughput_vs"} & set(row)
    assert json.loads((tmp_path / "finetune_twin.json").read_text()) == report
    (alone,) = json.loads((tmp_path / "finetune.json").read_text())["rows"]
    assert alone["mode"] == "host" and "twin" not in alone


def test_lengths_are_read_in_units_of_1024() -> None:
    assert lengths_of("8k,32K,100") == [8192, 32768, 100]
