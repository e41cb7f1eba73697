"""Jobs through a real coordinator and real agents."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

import hyperframes.errors as errors
from example_jobs import shell_job
from local_cluster import LocalCluster, binary, process_environments, wait_until


def test_a_job_runs_and_its_log_is_whole(shared_cluster: LocalCluster) -> None:
    job_id = shared_cluster.submit(shell_job("for i in 1 2 3; do echo line $i; done"))
    job = shared_cluster.wait_job(job_id, 20)
    assert job["state"] == "JOB_STATE_SUCCEEDED", job
    assert shared_cluster.whole_log(job_id, 0) == "line 1\nline 2\nline 3\n"


def test_a_failing_rank_fails_the_job_with_its_exit_code(shared_cluster: LocalCluster) -> None:
    job = shared_cluster.wait_job(shared_cluster.submit(shell_job("exit 7")), 20)
    assert job["state"] == "JOB_STATE_FAILED"
    assert "7" in job["message"]


def test_ranks_get_torchruns_variables_and_a_gpu_each(shared_cluster: LocalCluster) -> None:
    script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $HYPERFRAMES_NODE $HYPERFRAMES_GPU $MASTER_PORT"
    job_id = shared_cluster.submit(shell_job(script, 2, placement="PLACEMENT_SPREAD"))
    assert shared_cluster.wait_job(job_id, 20)["state"] == "JOB_STATE_SUCCEEDED"
    lines = [shared_cluster.whole_log(job_id, rank).split() for rank in range(2)]
    assert [line[:3] for line in lines] == [["0", "0", "2"], ["1", "0", "2"]]
    assert {line[3] for line in lines} == {"a", "b"}
    assert all(line[4].startswith(f"SIM-{line[3]}-") for line in lines)
    assert lines[0][5] == lines[1][5]


def test_cancelling_ends_every_descendant(shared_cluster: LocalCluster) -> None:
    job_id = shared_cluster.submit(shell_job("sleep 300 & sleep 301 & echo up; wait"))
    wait_until(lambda: "up" in _log(shared_cluster, job_id), 20, "the job to run")
    mark = f"HYPERFRAMES_JOB_ID={job_id}".encode()
    mine = [pid for pid, environment in process_environments() if mark in environment]
    assert len(mine) >= 3
    shared_cluster.call("CancelJob", {"id": job_id})
    assert shared_cluster.wait_job(job_id, 20)["state"] == "JOB_STATE_CANCELLED"
    wait_until(lambda: not any(map(_alive, mine)), 2, "every process of the job to end")


# docs/cases.md C19, scaled: it needs a second of its grace of 20.
def test_a_job_saves_within_its_grace_at_the_time_limit_and_ends_as_timeout(
    shared_cluster: LocalCluster,
) -> None:
    save = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    job_id = shared_cluster.submit(shell_job(save, time_limit_s=2, grace_s=20))
    job = shared_cluster.wait_job(job_id, 20)
    assert job["state"] == "JOB_STATE_TIMEOUT", job
    assert job["reason"] == "time_limit"
    assert "2s" in job["message"]
    assert shared_cluster.whole_log(job_id, 0).splitlines()[-1] == "saved"


def test_a_job_that_fails_once_is_restarted_and_succeeds(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    mark = tmp_path / "failed-once"
    script = (
        f"echo restarts $TORCHELASTIC_RESTART_COUNT; [ -e {mark} ] || {{ touch {mark}; exit 3; }}"
    )
    job_id = shared_cluster.submit(shell_job(script, max_restarts=3))
    job = shared_cluster.wait_job(job_id, 30)
    assert job["state"] == "JOB_STATE_SUCCEEDED", job
    assert job["restarts"] == 1
    assert shared_cluster.whole_log(job_id, 0) == "restarts 1\n"
    assert [attempt["attempt"] for attempt in job["attempts"]] == [1]
    assert "rank 0" in job["attempts"][0]["message"] and "code 3" in job["attempts"][0]["message"]
    assert _hfctl(shared_cluster, "job", "logs", job_id, "--previous") == "restarts 0\n"
    assert _hfctl(shared_cluster, "job", "logs", job_id, "--attempt", "1") == "restarts 0\n"
    with pytest.raises(errors.NotFound, match="attempt 7"):
        shared_cluster.call("ReadLog", {"job_id": job_id, "attempt": 7})


def test_a_preempted_job_saves_and_frees_its_gpus(shared_cluster: LocalCluster) -> None:
    save = "trap 'sleep 1; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    job_id = shared_cluster.submit(shell_job(save, grace_s=20, max_restarts=3))
    wait_until(lambda: "up" in _log(shared_cluster, job_id), 20, "the job to run")
    assert "STOPPING" in _hfctl(shared_cluster, "job", "preempt", job_id)
    job = shared_cluster.wait_job(job_id, 20)
    assert job["state"] == "JOB_STATE_PREEMPTED", job
    assert job["restarts"] == 0
    assert shared_cluster.whole_log(job_id, 0).splitlines()[-1] == "saved"
    assert "PREEMPTED" in _hfctl(shared_cluster, "job", "preempt", job_id), "twice is once"


def test_a_followed_log_ends_when_its_reader_has_gone(shared_cluster: LocalCluster) -> None:
    job_id = shared_cluster.submit(shell_job("echo one; sleep 300"))
    wait_until(lambda: "one" in _log(shared_cluster, job_id), 20, "the job to print")
    hfctl = f"{binary('client/cli:hfctl')} --coordinator {shared_cluster.address}"
    started = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", f"{hfctl} job logs {job_id} -f | head -n 1"],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    assert done.stdout == "one\n"
    assert time.monotonic() - started < 5
    shared_cluster.call("CancelJob", {"id": job_id})
    shared_cluster.wait_job(job_id, 20)


def test_a_job_that_fails_without_a_step_again_and_again_is_stopped(
    shared_cluster: LocalCluster,
) -> None:
    job_id = shared_cluster.submit(shell_job("exit 3", max_restarts=100))
    job = shared_cluster.wait_job(job_id, 30)
    assert job["state"] == "JOB_STATE_NO_PROGRESS", job
    assert job["restarts"] == 1
    assert "code 3" in job["message"]


def test_exit_code_93_asks_for_no_restart(shared_cluster: LocalCluster) -> None:
    job = shared_cluster.wait_job(shared_cluster.submit(shell_job("exit 93", max_restarts=5)), 20)
    assert job["state"] == "JOB_STATE_FAILED", job
    assert job["restarts"] == 0


def test_the_rank_that_failed_first_is_the_cause_although_its_peers_fail_too(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    failed = tmp_path / "rank-1-failed"
    script = (
        f"if [ $RANK = 1 ]; then touch {failed}; exit 7; fi; "
        f"while [ ! -e {failed} ]; do sleep 0.01; done; sleep 0.1; exit 1"
    )
    for placement in ("PLACEMENT_PACK", "PLACEMENT_SPREAD"):
        failed.unlink(missing_ok=True)
        job_id = shared_cluster.submit(shell_job(script, 2, placement=placement))
        job = shared_cluster.wait_job(job_id, 30)
        assert job["state"] == "JOB_STATE_FAILED", job
        assert "rank 1" in job["message"] and "code 7" in job["message"], job


# docs/cases.md C18.
def test_an_impossible_job_waits_with_its_reason_and_the_next_one_passes(
    shared_cluster: LocalCluster,
) -> None:
    impossible = shared_cluster.submit(shell_job("true", ranks=64))
    possible = shared_cluster.submit(shell_job("true"))
    assert shared_cluster.wait_job(possible, 20)["state"] == "JOB_STATE_SUCCEEDED"
    job = shared_cluster.job(impossible)
    assert job["state"] == "JOB_STATE_QUEUED"
    assert "64" in job["message"]
    shared_cluster.call("CancelJob", {"id": impossible})
    assert shared_cluster.wait_job(impossible, 20)["state"] == "JOB_STATE_CANCELLED"


def test_submitting_twice_with_one_key_is_one_job(shared_cluster: LocalCluster) -> None:
    request = {"spec": shell_job("true"), "idempotency_key": "the-same-key"}
    first, second = (shared_cluster.call("SubmitJob", request)["job"]["id"] for _ in range(2))
    assert first == second


def test_a_job_with_an_unknown_field_is_refused_by_name(shared_cluster: LocalCluster) -> None:
    with pytest.raises(errors.InvalidArgument, match="gpus_per_rank"):
        shared_cluster.submit({**shell_job("true"), "gpus_per_rank": 2})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("command", []),
        ("ranks", 0),
        ("ranks", -3),
        ("name", "no spaces here"),
        ("grace_s", -1),
        ("time_limit_s", -1),
    ],
)
def test_a_job_with_a_bad_value_is_refused_by_field(
    shared_cluster: LocalCluster, field: str, value: object
) -> None:
    with pytest.raises(errors.InvalidArgument, match=field):
        shared_cluster.submit({**shell_job("true"), field: value})


def test_our_own_variables_in_a_jobs_environment_are_refused(shared_cluster: LocalCluster) -> None:
    with pytest.raises(errors.InvalidArgument, match="HYPERFRAMES_JOB_TOKEN"):
        shared_cluster.submit(shell_job("true", env={"HYPERFRAMES_JOB_TOKEN": "mine"}))


def test_an_unknown_job_is_not_found(shared_cluster: LocalCluster) -> None:
    with pytest.raises(errors.NotFound, match="no-such-job"):
        shared_cluster.job("no-such-job")


def _hfctl(cluster: LocalCluster, *arguments: str) -> str:
    return subprocess.run(
        [str(binary("client/cli:hfctl")), "--coordinator", cluster.address, *arguments],
        capture_output=True, text=True, timeout=20, check=True,
    ).stdout  # fmt: skip


def _log(cluster: LocalCluster, job_id: str) -> str:
    try:
        return cluster.whole_log(job_id, 0)
    except errors.HyperFramesError:
        return ""  # Not started yet.


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
