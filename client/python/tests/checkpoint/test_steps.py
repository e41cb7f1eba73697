"""When a save may be taken: steps and micro-batches as torch's hooks tell them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

import hyperframes as hf
from hyperframes._checkpoint_steps import StepWatch


def watched(
    model: nn.Module, *optimizers: torch.optim.Optimizer
) -> tuple[StepWatch, tuple[torch.optim.Optimizer, ...]]:
    chosen = optimizers or (torch.optim.SGD(model.parameters(), lr=0.1),)
    watch = StepWatch(model, chosen)
    watch.install()
    return watch, chosen


def loss_of(model: nn.Module) -> torch.Tensor:
    result: torch.Tensor = model(torch.ones(2, 3)).sum()
    return result


def test_gradients_of_an_accumulation_group_put_a_save_off_until_they_are_applied() -> None:
    model = nn.Linear(3, 1)
    watch, (optimizer,) = watched(model)
    assert watch.why_not_now() == ""
    loss_of(model).backward()
    loss_of(model).backward()
    assert "micro-batch 0, 1" in watch.why_not_now()
    optimizer.step()
    assert watch.why_not_now() == ""
    assert (watch.counters.step, watch.counters.micro_batches) == (1, 2)
    assert watch.counters.order_table == [0, 1]


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_thrown_away_do_not_put_a_save_off(to_none: bool) -> None:
    model = nn.Linear(3, 1)
    watch, (optimizer,) = watched(model)
    loss_of(model).backward()
    assert watch.why_not_now()
    optimizer.zero_grad(set_to_none=to_none)
    assert watch.why_not_now() == ""
    assert watch.counters.step == 0


def test_a_step_that_the_scaler_skips_is_none_and_the_next_one_is_free_to_save() -> None:
    model = nn.Linear(3, 1)
    watch, (optimizer,) = watched(model)
    scaler = GradScaler("cpu", init_scale=2.0)
    for factor, steps in ((float("inf"), 0), (1.0, 1)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert watch.counters.step == steps
        assert bool(watch.why_not_now()) == (steps == 0)
    assert watch.counters.order_table == [0, 1]


def test_evaluation_and_recomputation_are_no_micro_batches() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    watch, _ = watched(model)
    with torch.no_grad():
        loss_of(model)
    model.eval()
    loss_of(model)
    model.train()
    outer = torch.utils.checkpoint.checkpoint(
        model, torch.ones(2, 3, requires_grad=True), use_reentrant=False
    )
    outer.sum().backward()
    assert watch.counters.micro_batches == 1


def test_a_forward_that_only_calls_a_part_of_the_model_still_leaves_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    watch, _ = watched(model)
    loss_of(model[0]).backward()
    assert "gradients wait" in watch.why_not_now()


def test_each_of_two_optimizers_has_gradients_of_its_own() -> None:
    model = nn.ModuleDict({"d": nn.Linear(3, 1), "g": nn.Linear(3, 1)})
    d, g = (torch.optim.SGD(model[name].parameters(), lr=0.1) for name in "dg")
    watch, _ = watched(model, d, g)
    loss_of(model["g"]).backward()
    loss_of(model["d"]).backward()
    d.step()
    assert "of optimizer 1" in watch.why_not_now()
    g.step()
    assert watch.why_not_now() == ""
    assert watch.counters.step == 1


def test_an_optimizer_inside_the_backward_leaves_nothing_waiting() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    watch, _ = watched(model, *optimizers)
    for parameter, optimizer in zip(model.parameters(), optimizers, strict=True):

        def apply(p: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(apply)
    loss_of(model).backward()
    assert watch.why_not_now() == ""
    assert watch.counters.step == 1


def test_hooks_are_gone_after_the_context(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hf.checkpoint(tmp_path, model=model, optimizer=optimizer) as checkpoints:
        pass
    loss_of(model).backward()
    optimizer.step()
    assert checkpoints.micro_batches == 0
    with pytest.raises(hf.FailedPrecondition, match="Enter hf"):
        checkpoints.step()


def test_a_forced_save_amid_an_accumulation_group_says_which_gradients_wait(
    tmp_path: Path,
) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hf.checkpoint(tmp_path, model=model, optimizer=optimizer) as checkpoints:
        loss_of(model).backward()
        with pytest.raises(hf.FailedPrecondition, match="micro-batch 0"):
            checkpoints.save()
        optimizer.step()
        checkpoints.save()
        checkpoints.wait()
        checkpoints.save()  # The same step again: nothing to do.
        assert checkpoints.stats()["saved"] == 1
    assert (tmp_path / "step-00000001" / "manifest.json").exists()


def test_saves_fall_on_multiples_whatever_happened_in_between(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hf.checkpoint(
        tmp_path, model=model, optimizer=optimizer, every=3, keep=9
    ) as checkpoints:  # fmt: skip
        for step in range(8):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpoints.step()
            if step == 3:
                checkpoints.save()
    names = sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith("step"))
    assert names == ["step-00000003", "step-00000004", "step-00000006"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": -1}, "every=-1"),
        ({"keep": 0}, "keep=0"),
        ({"loader": [1, 2]}, "loader is a list without state_dict"),
        ({"extra": {"ema": object()}}, "extra\\['ema'\\] is a object without"),
        ({"optimizer": []}, "optimizer is empty"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(
    options: dict[str, object], words: str, tmp_path: Path
) -> None:
    model = nn.Linear(3, 1)
    values = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **options}
    with pytest.raises(hf.InvalidArgument, match=words):
        hf.checkpoint(tmp_path, model=model, **values)  # type: ignore[arg-type]
