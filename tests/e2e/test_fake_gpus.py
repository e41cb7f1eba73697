"""A cluster whose agent finds GPUs: fake ones, behind the names of the real driver and NVML."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from example_jobs import shell_job
from gpus import twin
from local_cluster import ROOT, LocalCluster, Node, wait_until

FAKES = ROOT / "bazel-bin" / "agent" / "device" / "cuda" / "fake"
GPU = "GPU-00000000-0000-0000-0000-0000000000{:02}"

pytestmark = pytest.mark.skipif(
    not (FAKES / "libcuda.so.1").exists(),
    reason="built without a CUDA toolkit, or not built: bazel build //agent/device/cuda/fake",
)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKES))
    monkeypatch.setenv("HYPERFRAMES_FAKE_GPUS", "2")
    return monkeypatch


def page(cluster: LocalCluster, path: str) -> str:
    address = cluster.agents["n"].ready["http"]
    with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def surveyed(cluster: LocalCluster) -> dict[str, Any]:
    """What the agent knows of its links, once it has tried them all."""
    wait_until(lambda: json.loads(page(cluster, "/statusz"))["links"]["done"], 60, "the survey")
    return dict(json.loads(page(cluster, "/statusz"))["links"])


def test_ranks_find_their_own_gpu_under_their_local_rank(
    fakes: pytest.MonkeyPatch, run_directory: Path
) -> None:
    with LocalCluster(run_directory, [Node("n", "")]) as cluster:
        gpus = cluster.client.nodes()[0]["gpus"]
        assert {gpu["uuid"] for gpu in gpus} == {GPU.format(1), GPU.format(2)}
        assert {gpu["backend"] for gpu in gpus} == {"cuda"}
        script = "echo $LOCAL_RANK $HYPERFRAMES_GPU $CUDA_VISIBLE_DEVICES $HYPERFRAMES_BACKEND"
        job_id = cluster.submit(shell_job(f"{script} [$HYPERFRAMES_HOST_DEVICES]", ranks=2))
        assert cluster.wait_job(job_id, 60)["state"] == "JOB_STATE_SUCCEEDED"
        for rank in range(2):
            local_rank, own, visible, backend, simulated = cluster.whole_log(job_id, rank).split()
            assert visible.split(",")[int(local_rank)] == own
            assert len(visible.split(",")) == 2
            assert (backend, simulated) == ("cuda", "[]")


def test_links_that_could_not_be_measured_are_told_and_counted(
    fakes: pytest.MonkeyPatch, run_directory: Path
) -> None:
    with LocalCluster(run_directory, [Node("n", "", {"host-bytes": "64MiB"})]) as cluster:
        links = surveyed(cluster)
        assert links["measured"] == []
        assert len(links["unmeasured"]) == 6
        assert "cuDevicePrimaryCtxRetain" in links["unmeasured"][0]["message"]
        assert 'hyperframes_links_unmeasured{reason="copy_failed"} 6' in page(cluster, "/metrics")


def test_of_one_gpu_seen_as_two_a_job_gets_the_one_that_computes(
    fakes: pytest.MonkeyPatch, run_directory: Path
) -> None:
    fakes.setenv("HYPERFRAMES_FAKE_GPUS", "1,contexts")
    fakes.setenv("HYPERFRAMES_TWIN_DIRECTORY", str(run_directory / "twin"))
    for name, library in twin.environment(ROOT / "bazel-bin").items():
        fakes.setenv(name, library)
    with LocalCluster(run_directory, [Node("n", "", {"host-bytes": "64MiB"})]) as cluster:
        links = surveyed(cluster)
        assert (len(links["measured"]), links["unmeasured"]) == (6, [])
        gpus = [gpu["uuid"] for gpu in cluster.client.nodes()[0]["gpus"]]
        assert sorted(gpus) == [GPU.format(1), GPU.format(1).replace("GPU-00", "GPU-ff")]
        words = " ".join(twin.words())
        script = f"echo $HYPERFRAMES_GPU $CUDA_VISIBLE_DEVICES; {words} printenv"
        job_id = cluster.submit(shell_job(script))
        assert cluster.wait_job(job_id, 60)["state"] == "JOB_STATE_SUCCEEDED"
        own, *log = cluster.whole_log(job_id, 0).splitlines()
        assert own.split() == [GPU.format(1)] * 2
        assert set(twin.words()[1:]) <= set(log)


def test_partitions_get_no_job_and_say_why(fakes: pytest.MonkeyPatch, run_directory: Path) -> None:
    fakes.setenv("HYPERFRAMES_FAKE_GPUS", "1,partitioned")
    with LocalCluster(run_directory, [Node("n", "")]) as cluster:
        gpu = cluster.client.nodes()[0]["gpus"][0]
        assert gpu["unhealthy"]
        assert "nvidia-smi -mig 0" in gpu["unhealthy_reason"]
        job = cluster.job(cluster.submit(shell_job("true")))
        wait_until(lambda: "1 unhealthy" in cluster.job(job["id"])["message"], 10, "the reason")
        assert cluster.job(job["id"])["state"] == "JOB_STATE_QUEUED"
