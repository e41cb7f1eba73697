"""kill -9 of a worker: every leased byte back within two seconds, counted on the device."""

from __future__ import annotations

from pathlib import Path

from example_jobs import training_job
from kills import kill_one_worker, lease_holder_job
from local_cluster import LocalCluster

BACK_WITHIN_S = 2.0


def test_every_leased_byte_is_back_after_twenty_kills(cluster: LocalCluster) -> None:
    seconds = [kill_one_worker(cluster, lease_holder_job(), n % 2) for n in range(20)]
    assert max(seconds) <= BACK_WITHIN_S, [f"{s:.2f}" for s in seconds]


def test_every_leased_byte_is_back_after_kills_in_training(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    seconds = [
        kill_one_worker(
            cluster,
            training_job(
                "hyperframes", tmp_path / f"{n}-{{rank}}.json", "--activation-budget", "8MiB",
                steps=1000,
            ),
            n % 2,
        )
        for n in range(4)
    ]  # fmt: skip
    assert max(seconds) <= BACK_WITHIN_S, [f"{s:.2f}" for s in seconds]
