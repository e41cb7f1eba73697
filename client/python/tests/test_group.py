"""What ranks agree on, and the exit codes of workers: plain values in, plain values out."""

from __future__ import annotations

import pytest

import hyperframes as hf
from hyperframes._backend import _share_of_rank, check_own_gpu
from hyperframes._group import RECOMPUTE, SAVE, agree, bind, unbind
from hyperframes._worker import exit_code


def test_a_block_that_communicates_is_recomputed_on_all_ranks_or_on_none() -> None:
    one = {"a": (RECOMPUTE, True, True), "b": (RECOMPUTE, True, False)}
    other = {"a": (SAVE, True, True), "b": (SAVE, True, False)}
    assert agree([one, other]) == agree([other, one]) == {"a": RECOMPUTE}


def test_one_rank_that_cannot_recompute_keeps_all_from_it() -> None:
    assert agree([{"a": (RECOMPUTE, True, True)}, {"a": (SAVE, False, True)}]) == {"a": SAVE}


def test_a_block_that_communicates_on_one_rank_only_is_agreed_on_by_all() -> None:
    assert agree([{"a": (SAVE, True, True)}, {"a": (SAVE, True, False)}, {}]) == {"a": SAVE}


def test_the_planner_is_asked_for_what_an_agreed_recomputation_really_holds() -> None:
    block = {
        "name": "a",
        "forward_s": 1.0,
        "backward_s": 2.0,
        "transient_bytes": 5,
        "storages": [{"bytes": 10, "is_input": True}, {"bytes": 90, "is_input": False}],
    }
    problem = {"rank": 0, "blocks": [block, {**block, "name": "b"}]}
    bound = bind(problem, {"a": RECOMPUTE})["blocks"]
    assert [s["bytes"] for s in bound[0]["storages"]] == [10]
    assert (bound[0]["backward_s"], bound[0]["transient_bytes"]) == (3.0, 90)
    assert bound[0]["not_recomputable"] and bound[1] == {**block, "name": "b"}
    assert bind(problem, {"a": SAVE})["blocks"][0] == {**block, "not_recomputable": True}
    answer = {"ranks": [{"blocks": [{"name": "a", "policy": SAVE}, {"name": "b", "policy": SAVE}]}]}
    policies = [b["policy"] for b in unbind(answer, {"a": RECOMPUTE})["ranks"][0]["blocks"]]
    assert policies == [RECOMPUTE, SAVE]


def test_ranks_borrow_equal_shares_and_never_from_gpus_that_ranks_compute_on() -> None:
    devices = [{"uuid": f"GPU-{i}", "is_host": False, "lendable_bytes": "900"} for i in range(3)]
    host = {"uuid": "host:a", "is_host": True, "lendable_bytes": "601"}
    shared = _share_of_rank({"devices": [*devices, host], "links": ["kept"]}, 2)
    assert [d["lendable_bytes"] for d in shared["devices"]] == [0, 0, 450, 300]
    assert [d["uuid"] for d in shared["devices"]] == ["GPU-0", "GPU-1", "GPU-2", "host:a"]
    assert shared["links"] == ["kept"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (hf.ResourceExhausted("no plan fits"), 93),
        (hf.FailedPrecondition("nested"), 93),
        (hf.InvalidArgument("budget"), 93),
        (hf.Unavailable("no coordinator answers"), 3),
        (hf.DeadlineExceeded("no profile from rank 1"), 124),
        (hf.DataLoss("a frame"), 1),
        (ValueError("the user's own"), 1),
    ],
)
def test_a_worker_that_would_fail_again_says_so_by_its_exit_code(
    error: Exception, code: int
) -> None:
    assert exit_code(error) == code


def test_a_model_on_another_gpu_than_the_ranks_own_is_refused_with_the_right_index() -> None:
    visible = ["GPU-b", "GPU-a"]
    check_own_gpu("GPU-a", visible, 1)
    with pytest.raises(hf.FailedPrecondition, match=r"cuda:0 \(GPU-b\).*GPU-a.*use cuda:1"):
        check_own_gpu("GPU-a", visible, 0)
    with pytest.raises(hf.FailedPrecondition, match="not visible"):
        check_own_gpu("GPU-c", visible, 0)
