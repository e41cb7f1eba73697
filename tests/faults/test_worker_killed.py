"""kill -9 of a worker: every leased byte back within two seconds, counted on the device."""

from __future__ import annotations

from pathlib import Path

from kills import kill_one_worker
from local_cluster import LocalCluster

KILLS = 20
BACK_WITHIN_S = 2.0


def test_every_leased_byte_is_back_within_two_seconds(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    seconds = [
        kill_one_worker(cluster, tmp_path / f"{n}-{{rank}}.json", n % 2) for n in range(KILLS)
    ]
    assert max(seconds) <= BACK_WITHIN_S, [f"{s:.2f}" for s in seconds]
