"""The embedded default: real planner, real engine, simulated GPUs; nothing but a budget given."""

from __future__ import annotations

import dataclasses
import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import hyperframes as hf
from cases.small_gpt import (
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
    train,
)
from hyperframes._backend import EmbeddedBackend
from process_groups import run_two_ranks

OPTIONS: dict[str, Any] = {"layers": 6, "hidden": 128, "length": 128, "dropout": 0.1}
PACKAGE = Path(__file__).resolve().parents[1]


def length(step: int) -> int:
    return 128


@pytest.fixture(autouse=True)
def two_simulated_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 1GiB")


@pytest.fixture(scope="module")
def plain() -> Any:
    return train(make_gpt(**OPTIONS), lengths=length)


@pytest.fixture(scope="module")
def profile() -> hf.Profile:
    ids, targets = batch(0, 128)
    model = make_gpt(**OPTIONS)
    optimizer = torch.optim.AdamW(model.parameters())
    return hf.profile(model, ids, loss_fn=lambda o: loss_of(o, targets), optimizer=optimizer)


def run(profile: hf.Profile, **limits: Any) -> tuple[Any, Any]:
    model = make_gpt(**OPTIONS)
    context = hf.hyperframes(model, profile=profile, **limits)
    with context as inside:
        seen = train(inside, lengths=length)
    return seen, context


def smallest(profile: hf.Profile) -> int:
    with pytest.raises(hf.ResourceExhausted) as refused:
        run(profile, activation_budget=1)
    words = str(refused.value).split("the smallest activation_budget that works is")[1]
    return int(words.split("(")[1].split(" bytes")[0])


def test_the_measured_peak_stays_under_every_budget(plain: Any, profile: hf.Profile) -> None:
    least, most = smallest(profile), profile.activation_bytes
    before = 0
    for step in range(8):
        budget = least + (most - least) * step // 7
        seen, context = run(profile, activation_budget=budget, verify=True)
        assert_same(plain, seen)
        peak = context.stats()["activation_peak"]
        assert 0 < peak <= budget, f"{peak} bytes held under a budget of {budget}"
        assert context.stats()["unplanned_storages"] == 0
        before = max(before, peak)
    assert before == most  # With everything allowed, everything stays.


def test_below_what_a_block_leaves_that_waits_elsewhere_too(
    plain: Any, profile: hf.Profile
) -> None:
    """The budget is less than one block's own activations and the windows."""
    budget = smallest(profile)
    seen, context = run(profile, activation_budget=budget, verify=True)
    assert_same(plain, seen)
    stats = context.stats()
    assert 0 < stats["activation_peak"] <= budget
    assert stats["rerun_moved_bytes"] > 0
    assert stats["peer_bytes"] + stats["host_bytes"] >= stats["rerun_moved_bytes"]
    assert "run again, it puts away" in context.explain()
    unknown = dataclasses.replace(
        profile,
        blocks=[
            dataclasses.replace(block, rerun_bytes=0, rerun_working_bytes=0)
            for block in profile.blocks
        ],
    )
    assert smallest(unknown) > budget


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_backward_that_failed_gives_its_leases_back_with_its_graph() -> None:
    """Who catches the error and tries a smaller batch finds all that can be lent."""
    model = make_gpt(**OPTIONS)
    ids, targets = batch(0, 128)
    profile = hf.profile(model, ids, loss_fn=lambda o: loss_of(o, targets))
    middle = model.blocks[3]
    middle.register_forward_hook(lambda block, given, output: _Fails.apply(output))
    context = hf.hyperframes(
        model, profile=profile, activation_budget=profile.activation_bytes // 2,
        forbid=["recompute"],
    )  # fmt: skip
    with pytest.raises(torch.OutOfMemoryError), context as inside:
        loss = loss_of(inside(ids), targets)
        store = context._store
        assert store is not None and store.live
        engine = weakref.ref(store.engine)
        del store
        loss.backward()
    assert context.stats()["engine"]["bytes_out"]
    del loss
    gc.collect()  # The error's traceback holds the frame that ran backward.
    assert engine() is None


@pytest.mark.parametrize(
    "forbid",
    [["peer"], ["host"], ["recompute"], ["peer", "host"], ["recompute", "host"]],
    ids="-".join,
)
def test_what_is_forbidden_is_not_used(forbid: list[str], plain: Any, profile: hf.Profile) -> None:
    seen, context = run(profile, activation_budget=profile.activation_bytes // 2, forbid=forbid)
    assert_same(plain, seen)
    stats = context.stats()
    used = {
        "peer": stats["peer_bytes"],
        "host": stats["host_bytes"],
        "recompute": stats["recomputed_blocks"],
    }
    assert all(used[word] == 0 for word in forbid)
    assert any(used.values())


def test_a_pinned_block_goes_to_its_gpu(plain: Any, profile: hf.Profile) -> None:
    seen, context = run(
        profile,
        activation_budget=profile.activation_bytes,
        pin={"blocks.2": "SIM-local-1"},
    )
    assert_same(plain, seen)
    moved = sum(s.nbytes for s in profile.block("blocks.2").storages if not s.unmovable_reason)
    assert context.stats()["peer_bytes"] == moved
    with pytest.raises(hf.InvalidArgument, match=r"no block 'blocks\.9'"):
        run(profile, activation_budget="1GiB", pin={"blocks.9": "SIM-local-1"})


def test_t19_budgets_that_cannot_be_meant(profile: hf.Profile) -> None:
    with pytest.raises(hf.ResourceExhausted, match="smallest activation_budget that works"):
        run(profile, activation_budget=0)
    with pytest.raises(hf.ResourceExhausted, match="smallest activation_budget that works"):
        run(profile, activation_budget="1KiB")
    with pytest.raises(hf.ResourceExhausted, match="smallest budget that works"):
        run(profile, budget=0)
    for value in (-1, "-5GiB", "5 apples", 1.5, True, ""):
        with pytest.raises(hf.InvalidArgument, match="activation_budget="):
            run(profile, activation_budget=value)
    with pytest.raises(hf.InvalidArgument, match="both given"):
        run(profile, activation_budget="1GiB", budget="1GiB")
    with pytest.raises(hf.InvalidArgument, match="forbid='gpu'"):
        run(profile, forbid=["gpu"])
    with pytest.raises(hf.InvalidArgument, match="objective='speed'"):
        run(profile, objective="speed")


def test_t19_no_host_memory_allowed_means_none(plain: Any, profile: hf.Profile) -> None:
    seen, context = run(profile, activation_budget=profile.activation_bytes // 2, host_budget=0)
    assert_same(plain, seen)
    assert context.stats()["host_bytes"] == 0
    assert context.stats()["peer_bytes"] + context.stats()["recomputed_bytes"] > 0


def test_t19_a_budget_larger_than_the_card_is_the_card(
    monkeypatch: pytest.MonkeyPatch, profile: hf.Profile, plain: Any
) -> None:
    seen, context = run(profile, budget="100GiB")
    assert_same(plain, seen)
    assert context.plan is not None
    assert context.plan.predicted_peak <= 1 << 30
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 8MiB")
    with pytest.raises(hf.ResourceExhausted, match="SIM-local-0"):
        run(profile, budget="100GiB")


def test_the_budget_of_the_process_binds_activations_and_the_gradients_that_are_there(
    monkeypatch: pytest.MonkeyPatch, plain: Any, profile: hf.Profile
) -> None:
    """Before backward the gradients' share of the budget is free for activations."""
    model = make_gpt(**OPTIONS)
    held: list[int] = []
    activations: list[int] = []

    def sample(meter: hf.ActivationMeter) -> None:
        made = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        activations.append(meter.current_bytes)
        held.append(meter.current_bytes + made)

    monkeypatch.setattr(hf.ActivationMeter, "_sample", sample)
    allowed = profile.gradient_bytes + profile.activation_bytes // 2
    budget = profile.resident_bytes + profile.activation_bytes // 2
    with hf.hyperframes(model, profile=profile, budget=budget) as inside:
        seen = train(inside, lengths=length)
    assert_same(plain, seen)
    assert max(held) <= allowed
    assert max(activations) > profile.activation_bytes // 2


def test_a_step_that_begins_with_gradients_is_planned_with_them(profile: hf.Profile) -> None:
    model = make_gpt(**OPTIONS)
    ids, targets = batch(0, 128)
    budget = profile.resident_bytes + profile.activation_bytes // 2
    peaks = []
    context = hf.hyperframes(model, profile=profile, budget=budget)
    with context as inside:
        for _ in range(3):  # The second and third add to the first one's gradients.
            loss_of(inside(ids), targets).backward()
            assert context.plan is not None
            peaks.append(context.plan.predicted_activation_peak)
    assert peaks[0] > profile.activation_bytes // 2 >= peaks[1] == peaks[2]


def test_without_a_budget_the_recommended_one_is_printed(
    capsys: pytest.CaptureFixture[str], plain: Any, profile: hf.Profile
) -> None:
    seen, _ = run(profile)
    assert_same(plain, seen)
    said = capsys.readouterr().out
    assert said.startswith("HyperFrames: no budget was given; this one is used:\n")
    for row in ("activation_budget", "why", "to peer GPUs", "predicted peak", "predicted step"):
        assert f"\n  {row} " in said
    assert len(said.splitlines()) < 20 and max(map(len, said.splitlines())) <= 100


def test_a_sample_input_is_enough(plain: Any) -> None:
    ids, targets = batch(0, 128)
    model = make_gpt(**OPTIONS)
    context = hf.hyperframes(
        model, sample_input=ids, loss_fn=lambda o: loss_of(o, targets), activation_budget="6MiB"
    )
    with context as inside:
        assert_same(plain, train(inside, lengths=length))
        assert hf.stats(inside)["activation_budget"] == 6 << 20
    assert context.meter.peak_bytes <= 6 << 20
    assert "blocks.3" in context.explain()


def test_the_meter_reads_the_same_in_three_modes(profile: hf.Profile) -> None:
    def measure(model: Any) -> int:
        with hf.ActivationMeter(model) as meter:
            train(model, 2, lengths=length)
        return meter.step_peak

    nothing = measure(make_gpt(**OPTIONS))
    model = make_gpt(**OPTIONS)
    model.checkpointing = True
    checkpointing = measure(model)
    model = make_gpt(**OPTIONS)
    with hf.hyperframes(model, profile=profile, activation_budget=nothing * 2 // 5) as inside:
        hyperframes = measure(inside)
    one_block = profile.block("blocks.5").nbytes
    inputs = 5 * 2 * 128 * 128 * 4
    assert nothing == profile.activation_bytes
    # Inputs of the other layers, one layer made again, and what norm, head and loss keep.
    assert one_block + inputs <= checkpointing <= one_block + inputs + (1 << 20)
    assert hyperframes <= nothing * 2 // 5


def test_new_lengths_are_planned_at_once_and_kept_under_the_budget(profile: hf.Profile) -> None:
    lengths = [128, 96, 64, 128, 112, 96, 80, 64]
    model = make_gpt(**OPTIONS)
    plain = train(model, len(lengths), lengths=lambda step: lengths[step])
    model = make_gpt(**OPTIONS)
    budget = profile.activation_bytes // 2
    context = hf.hyperframes(model, profile=profile, activation_budget=budget)
    with context as inside:
        assert_same(plain, train(inside, len(lengths), lengths=lambda step: lengths[step]))
    assert context.stats()["activation_peak"] <= budget


def test_a_shape_that_cannot_fit_warns_with_the_smallest_budget_and_is_right(
    profile: hf.Profile,
) -> None:
    options = {**OPTIONS, "length": 256}
    plain = train(make_gpt(**options), 3, lengths=lambda step: 256)
    ids, targets = batch(0, 64)
    model = make_gpt(**options)
    small = hf.profile(model, ids, loss_fn=lambda o: loss_of(o, targets))
    with (
        hf.hyperframes(model, profile=small, activation_budget="2MiB") as inside,
        pytest.warns(UserWarning, match="smallest activation_budget"),
    ):
        assert_same(plain, train(inside, 3, lengths=lambda step: 256))


def test_several_forwards_in_flight_share_the_budget(profile: hf.Profile) -> None:
    def run_two(model: Any) -> list[Any]:
        seen = []
        for step in range(3):
            losses = []
            for micro in range(2):
                ids, targets = batch(2 * step + micro, 128)
                losses.append(loss_of(model(ids), targets))
            (losses[0] + losses[1]).backward()
            seen.append(gradients(model))
            model.zero_grad()
            peaks.append(context.meter.reset_peak() if model is framed else 0)
        return seen

    peaks: list[int] = []
    framed = make_gpt(**{**OPTIONS, "dropout": 0.0})
    plain_model = make_gpt(**{**OPTIONS, "dropout": 0.0})
    ids, targets = batch(0, 128)
    own = hf.profile(framed, ids, loss_fn=lambda o: loss_of(o, targets))
    budget = own.activation_bytes
    context = hf.hyperframes(framed, profile=own, activation_budget=budget)
    plain_gradients = run_two(plain_model)
    peaks.clear()
    with context, pytest.warns(UserWarning, match="2 forwards were alive at once"):
        found = run_two(framed)
    assert all(same_gradients(a, b) for a, b in zip(plain_gradients, found, strict=True))
    assert peaks[0] > budget  # Nobody knew yet.
    assert peaks[2] <= budget


def test_an_output_that_is_never_differentiated_does_not_halve_the_budget(
    profile: hf.Profile,
) -> None:
    class TwoHeads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = make_gpt(**OPTIONS)
            self.extra = torch.nn.Linear(97, 8)

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = self.gpt(ids)
            return logits, self.extra(logits.detach().sigmoid())

    model = TwoHeads()
    ids, targets = batch(0, 128)
    with (
        hf.hyperframes(model, sample_input=ids, activation_budget="16MiB") as inside,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        for _ in range(3):
            outputs = inside(ids)  # Holds the second head's graph until the next step.
            loss_of(outputs[0], targets).backward()


RANK = """
    import sys
    from cases.data_parallel import train_rank
    from cases.small_gpt import make_gpt

    context, _ = train_rank(make_gpt(dropout=0.1), float(sys.argv[1]))
    if context is not None:
        stats = context.stats()
        assert stats["peer_bytes"] + stats["host_bytes"] + stats["recomputed_bytes"] > 0
"""


def test_two_data_parallel_ranks_agree_on_a_plan_and_give_the_plain_bits() -> None:
    plain, _ = run_two_ranks(RANK, "0")
    assert len(plain) == 6
    assert run_two_ranks(RANK, "0.4")[0] == plain


def test_chaos_and_checksums_change_nothing(plain: Any, profile: hf.Profile) -> None:
    seen, _ = run(
        profile,
        activation_budget=profile.activation_bytes // 3,
        verify=True,
        _chaos={"seed": 5, "longest_delay_s": 0.002},
    )
    assert_same(plain, seen)


def test_a_missing_event_shows_in_the_gradients(plain: Any, profile: hf.Profile) -> None:
    """The comparison can fail: without the event that orders a lane it does."""
    found = False
    for seed in range(4):
        try:
            seen, _ = run(
                profile,
                activation_budget=profile.activation_bytes // 3,
                forbid=["recompute", "peer"],
                _chaos={
                    "seed": seed,
                    "longest_delay_s": 0.005,
                    "skip_direction": "out",
                    "skip_tier": "host",
                },
            )
        except (AssertionError, hf.HyperFramesError):
            found = True
        else:
            found = found or not all(
                torch.equal(a[0], b[0]) and same_gradients(a[1], b[1])
                for a, b in zip(plain, seen, strict=True)
            )
        if found:
            return
    pytest.fail("no seed made the planted fault visible")


def test_gradients_of_a_fresh_model_are_there(profile: hf.Profile) -> None:
    model = make_gpt(**OPTIONS)
    with hf.hyperframes(model, profile=profile, activation_budget="8MiB") as inside:
        loss_of(inside(batch(0, 128)[0]), batch(0, 128)[1]).backward()
    assert all(gradient is not None for gradient in gradients(model))


def test_the_environment_bounds_the_host_memory_of_an_embedded_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_BYTES", "64KiB")
    devices = EmbeddedBackend(torch.device("cpu")).describe()["devices"]
    assert [int(d["lendable_bytes"]) for d in devices if d.get("is_host")] == [64 << 10]
    monkeypatch.setenv("HYPERFRAMES_HOST_BYTES", "much")
    with pytest.raises(hf.InvalidArgument, match="HYPERFRAMES_HOST_BYTES='much'"):
        EmbeddedBackend(torch.device("cpu"))
