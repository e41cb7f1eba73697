"""A worker that does nothing but hold leases: the client library without torch, so that it is up in
a moment. Asks for a plan like any rank, maps what it is granted, fills it, prints `holding` and
moves bytes in and out until it is killed; with `--once` it returns them and ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
from pathlib import Path
from typing import Any

# The package's front door imports torch; the binding behind it knows nothing of it.
PACKAGE = Path(__file__).resolve().parents[2] / "client" / "python" / "hyperframes"
_package = types.ModuleType("hyperframes")
_package.__path__ = [str(PACKAGE)]
sys.modules["hyperframes"] = _package

from hyperframes._native import Machine, NativeClient, NativeEngine  # noqa: E402

__all__ = ["TIERS", "NativeClient", "engine_on_leases"]

BLOCKS, STORAGE_BYTES = 8, 4 * 2**20
TIERS = {"TIER_PEER": 1, "TIER_HOST": 2}


def rank_problem(blocks: int, storage_bytes: int, budget: int) -> dict[str, Any]:
    """Equal blocks of one storage each, none of which may be recomputed."""
    return {
        "rank": int(os.environ["RANK"]),
        "gpu": os.environ["HYPERFRAMES_GPU"],
        "blocks": [
            {
                "name": f"block.{number}",
                "forward_s": 0.01,
                "backward_s": 0.02,
                "not_recomputable": True,
                "storages": [{"ordinal": 0, "bytes": storage_bytes, "dtype": "uint8"}],
            }
            for number in range(blocks)
        ],
        "activation_budget": budget,
    }


def engine_on_leases(
    blocks: int, storage_bytes: int, budget: int
) -> tuple[NativeEngine, list[dict[str, Any]]]:
    """A plan as any rank asks for one, and an engine on what it grants."""
    client = NativeClient(os.environ["HYPERFRAMES_COORDINATOR"], {})
    answer = client.call(
        "CreatePlan",
        {
            "version": {"major": 1, "minor": 0},
            "job_id": os.environ["HYPERFRAMES_JOB_ID"],
            "job_token": os.environ["HYPERFRAMES_JOB_TOKEN"],
            "rank": rank_problem(blocks, storage_bytes, budget),
            "world_size": int(os.environ["WORLD_SIZE"]),
        },
        60.0,
    )
    leases = [{**lease, "bytes": int(lease["bytes"])} for lease in answer["leases"]]
    engine = NativeEngine(
        Machine({"backend": "host"}),
        {
            "gpu": os.environ["HYPERFRAMES_GPU"],
            "stash_limit": storage_bytes,
            "prefetch_limit": storage_bytes,
            "leases": leases,
        },
    )
    return engine, leases


def main() -> None:
    engine, leases = engine_on_leases(BLOCKS, STORAGE_BYTES, 4 * STORAGE_BYTES)
    source = ctypes.create_string_buffer(os.urandom(1024), STORAGE_BYTES)
    address = ctypes.addressof(source)
    said = False
    while True:
        handles = [
            engine.put(
                0, number, 0, address, STORAGE_BYTES, TIERS[lease["tier"]], lease["device"], -1, 0
            ).handle
            for lease in leases
            for number in range(lease["bytes"] // STORAGE_BYTES)
        ]
        engine.take_releasable(0, 0)
        for handle in handles:
            engine.drop(handle)
        engine.quiesce()
        if not said:
            print(f"holding {len(leases)} leases, {len(handles)} storages", flush=True)
            said = True
        if "--once" in sys.argv[1:]:
            engine.close()
            return


if __name__ == "__main__":
    main()
