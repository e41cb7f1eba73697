"""Cases T5, T11, T12, T14 to T18, T25 and T26: loops around and inside the model."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hyperframes as hf
from cases.backends import BACKENDS, RuleOnRealEngine
from cases.fake_engine import FakeBackend
from cases.small_gpt import (
    GPT,
    VOCABULARY,
    assert_same,
    batch,
    gradients,
    loss_of,
    make_gpt,
    same_gradients,
    train,
)


def mixed(block: str, storage: dict[str, Any]) -> str:
    if block.endswith("1"):
        return "recompute"
    return ("peer", "host", "keep")[storage["ordinal"] % 3]


def recompute(block: str, storage: dict[str, Any]) -> str:
    return "recompute"


def peer(block: str, storage: dict[str, Any]) -> str:
    return "peer"


RULES = {"mixed": mixed, "recompute": recompute, "peer": peer}


@pytest.fixture(params=list(RULES))
def rule(request: pytest.FixtureRequest) -> Any:
    return RULES[request.param]


@pytest.fixture(params=["unkind", "native"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def profiled(model: nn.Module, **options: Any) -> hf.Profile:
    ids, targets = batch(0)
    return hf.profile(model, ids, loss_fn=lambda out: loss_of(out, targets), **options)


def framed(
    model: nn.Module, rule: Any, backend_name: str = "unkind", _with: Any = None, **options: Any
) -> Any:
    options.setdefault("activation_budget", "1GiB")  # The rule decides, not the budget.
    backend = _with or BACKENDS[backend_name](rule)
    return hf.hyperframes(model, profile=profiled(model), _backend=backend, **options)


# ---- T5 ----


def test_t5_forward_on_one_thread_backward_on_another(rule: Any, backend_name: str) -> None:
    plain = make_gpt()
    loss_of(plain(batch(0)[0]), batch(0)[1]).backward()
    model = make_gpt()
    context = framed(model, rule, backend_name)
    with context as inside:
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert same_gradients(gradients(plain), gradients(model))
    assert context.stats()["engine"]["live_storages"] == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_t5_a_step_under_another_stream() -> None:
    model = make_gpt().cuda()
    with torch.cuda.stream(torch.cuda.Stream()), framed(model, peer) as inside:
        ids, targets = (x.cuda() for x in batch(0))
        loss_of(inside(ids), targets).backward()


# ---- T11, T12 ----


class SelfCheckpointing(GPT):
    """As transformers models do it: a flag, and the call inside."""

    def __init__(self, reentrant: bool, whole: bool) -> None:
        super().__init__()
        self.reentrant, self.whole = reentrant, whole

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for index, block in enumerate(self.blocks):
            if self.whole or index == 1:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            else:
                x = block(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "one"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "nonreentrant"])
def test_t11_checkpointing_is_refused_by_name(reentrant: bool, whole: bool) -> None:
    torch.manual_seed(0)
    model = SelfCheckpointing(reentrant, whole)
    with pytest.raises(hf.FailedPrecondition, match=r"gradient_checkpointing_disable\(\)"):
        profiled(model)
    plain = make_gpt()
    with (
        hf.hyperframes(model, profile=profiled(plain), _backend=FakeBackend(peer)) as inside,
        pytest.raises(hf.FailedPrecondition, match="allow_checkpointing=True"),
    ):
        inside(batch(0)[0])


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "one"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "nonreentrant"])
def test_t11_allowed_checkpointing_is_right(reentrant: bool, whole: bool, rule: Any) -> None:
    torch.manual_seed(0)
    plain = train(SelfCheckpointing(reentrant, whole))
    torch.manual_seed(0)
    model = SelfCheckpointing(reentrant, whole)
    profile = profiled(model, allow_checkpointing=True)
    with hf.hyperframes(
        model, profile=profile, _backend=FakeBackend(rule), allow_checkpointing=True
    ) as inside:
        assert_same(plain, train(inside))


def test_t11_a_flag_on_a_submodule_is_refused_by_name() -> None:
    model = make_gpt()
    model.blocks[1].gradient_checkpointing = True  # type: ignore[assignment]
    with pytest.raises(hf.FailedPrecondition, match=r"blocks\.1 has gradient_checkpointing=True"):
        hf.hyperframes(model, _backend=FakeBackend(peer))


def test_t11_a_nested_offloader_is_refused_by_name() -> None:
    model = make_gpt()
    inner = model.blocks[0].forward

    def offloading(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return inner(*args, **kwargs)

    profile = profiled(model)
    model.blocks[0].forward = offloading
    with (
        hf.hyperframes(model, profile=profile, _backend=FakeBackend(peer)) as inside,
        pytest.raises(hf.FailedPrecondition, match=r"save_on_cpu was entered in blocks\.0"),
    ):
        inside(batch(0)[0])
    with (
        torch.autograd.graph.save_on_cpu(),
        pytest.raises(hf.FailedPrecondition, match="already installed"),
        hf.hyperframes(make_gpt(), profile=profile, _backend=FakeBackend(peer)),
    ):
        pass


def test_t12_dropout_and_autocast_in_a_recomputed_block(backend_name: str) -> None:
    plain = train(make_gpt(dropout=0.3), autocast=torch.bfloat16)
    model = make_gpt(dropout=0.3)
    profile = profiled(model, dtype=torch.bfloat16)
    backend = BACKENDS[backend_name](recompute)
    context = hf.hyperframes(model, profile=profile, _backend=backend)
    with context as inside:
        assert_same(plain, train(inside, autocast=torch.bfloat16))
    assert context.stats()["recomputed_blocks"] > 9


# ---- T14, T15 ----


def test_t14_lengths_that_change_every_step(rule: Any, backend_name: str) -> None:
    lengths = [64, 48, 40, 33, 57, 21, 60, 52, 64, 48, 19, 64, 40]
    plain = train(make_gpt(), len(lengths), lengths=lambda step: lengths[step])
    context = framed(make_gpt(), rule, backend_name)
    with context as inside:
        assert_same(plain, train(inside, len(lengths), lengths=lambda step: lengths[step]))
    assert context.stats()["engine"]["live_storages"] == 0


def test_t14_a_shape_seen_before_is_planned_exactly() -> None:
    model = make_gpt()
    backend = FakeBackend(peer)
    context = hf.hyperframes(
        model, profile=profiled(model), activation_budget="1GiB", _backend=backend
    )
    with context as inside:
        train(inside, 6, lengths=lambda step: 40)
        unplanned = context.stats()["unplanned_storages"]
        train(inside, 6, lengths=lambda step: 40)
        assert context.stats()["unplanned_storages"] == unplanned
    assert len(backend.problems) == 3  # Profiled shape, scaled, learned.
    assert backend.engine.puts[1] > 200


def test_t14_many_new_shapes_bring_the_advice() -> None:
    with framed(make_gpt(length=64), peer) as inside, pytest.warns(UserWarning, match="Pad inputs"):
        train(inside, 20, lengths=lambda step: 20 + step)


def test_t15_evaluation_between_steps(rule: Any, backend_name: str) -> None:
    def evaluate(model: nn.Module) -> Callable[[int], None]:
        def run(step: int) -> None:
            model.eval()
            with torch.no_grad():
                model(batch(50 + step)[0])
            with torch.inference_mode():
                model(batch(60 + step)[0])
            model.train()

        return run

    model = make_gpt(dropout=0.1)
    plain = train(model, each_step=evaluate(model))
    model = make_gpt(dropout=0.1)
    with framed(model, rule, backend_name) as inside:
        assert_same(plain, train(inside, each_step=evaluate(model)))


class InterruptedForwardError(RuntimeError):
    pass


@pytest.mark.parametrize("at", [0, 2], ids=["first", "last"])
def test_t15_an_exception_in_forward_leaves_the_next_step_right(
    at: int, rule: Any, backend_name: str
) -> None:
    plain = train(make_gpt())
    model = make_gpt()
    context = framed(model, rule, backend_name)
    fail = [True]

    def raising(module: nn.Module, args: Any, output: Any) -> None:
        if fail[0]:
            raise InterruptedForwardError

    handle = model.blocks[at].up.register_forward_hook(raising)  # type: ignore[union-attr]
    with context as inside:
        with pytest.raises(InterruptedForwardError):
            inside(batch(9)[0])
        fail[0] = False
        gc.collect()
        assert_same(plain, train(inside))
    handle.remove()
    assert context.stats()["engine"]["live_storages"] == 0


# ---- T16, T17, T18 ----


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, 4, bias=False)
        self.b = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x))


def lora_gpt() -> GPT:
    model = make_gpt(tied=False)
    model.requires_grad_(False)
    torch.manual_seed(1)
    for block in model.blocks:
        block.qkv = Lora(block.qkv)  # type: ignore[arg-type]
        block.up = Lora(block.up)  # type: ignore[arg-type]
    return model


def test_t16_frozen_base_with_lora(rule: Any, backend_name: str) -> None:
    plain = train(lora_gpt())
    model = lora_gpt()
    with hf.ActivationMeter(model) as meter:
        train(model, 1)
    before = meter.peak_bytes
    model = lora_gpt()
    context = framed(model, rule, backend_name)
    with context as inside:
        assert_same(plain, train(inside))
        # The saving is measured, with the ruler of the plain run.
        assert 0 < context.meter.step_peak < before


def test_t17_two_hundred_steps_stay_flat() -> None:
    model = make_gpt(layers=2, hidden=32)
    backend = RuleOnRealEngine(mixed, verify=False)
    held: list[int] = []
    objects: list[int] = []
    with framed(model, mixed, _with=backend) as inside:
        for step in range(200):
            loss_of(inside(batch(step)[0]), batch(step)[1]).backward()
            stats = hf.stats(inside)["engine"]
            held.append(int(stats["live_storages"]) + int(stats["stash_bytes"]))
            if step % 50 == 49:
                gc.collect()
                objects.append(len(gc.get_objects()))
    assert len(set(held[3:])) == 1
    assert objects[-1] - objects[0] < 100


def test_t18_bytes_kept_alive_by_others_are_reported() -> None:
    model = make_gpt()
    hoard: list[torch.Tensor] = []
    model.blocks[0].up.register_forward_hook(  # type: ignore[union-attr]
        lambda module, args, output: hoard.append(output)
    )
    context = framed(model, peer)
    with context as inside:
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
        loss.backward()
        assert context.stats()["held_elsewhere"] == {"blocks.0": 2 * 64 * 4 * 64 * 4}


# ---- T25, T26 ----


def test_t25_accumulation_clipping_and_a_scaler_with_an_inf_step(
    rule: Any, backend_name: str
) -> None:
    def run(model: nn.Module) -> list[Any]:
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.GradScaler("cpu", init_scale=4.0)
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            for micro in range(4):
                ids, targets = batch(4 * step + micro)
                loss = loss_of(model(ids), targets) * (float("inf") if step == 1 else 1.0)
                scaler.scale(loss / 4).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            seen.append([g.nan_to_num() for g in gradients(model) if g is not None])
            scaler.step(optimizer)
            scaler.update()
        return seen

    plain = run(make_gpt())
    with framed(make_gpt(), rule, backend_name) as inside:
        found = run(inside)
    assert all(same_gradients(a, b) for a, b in zip(plain, found, strict=True))


def test_t25_several_forwards_before_their_backwards(rule: Any, backend_name: str) -> None:
    def run(model: nn.Module) -> list[Any]:
        losses = [loss_of(model(batch(i)[0]), batch(i)[1]) for i in range(3)]
        sum(losses[1:], losses[0]).backward()
        return gradients(model)

    plain = run(make_gpt(dropout=0.1))
    torch.manual_seed(0)
    model = make_gpt(dropout=0.1)
    context = framed(model, rule, backend_name)
    torch.manual_seed(0)
    make_gpt(dropout=0.1)  # Leaves the random state where the plain run had it.
    with context as inside:
        assert same_gradients(plain, run(inside))
    assert context.stats()["engine"]["live_storages"] == 0


def test_t25_the_optimizer_inside_backward(rule: Any, backend_name: str) -> None:
    def run(model: nn.Module) -> list[torch.Tensor]:
        optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

        def apply(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            optimizers[parameter].zero_grad()  # type: ignore[index]

        handles = [p.register_post_accumulate_grad_hook(apply) for p in model.parameters()]
        for step in range(3):
            loss_of(model(batch(step)[0]), batch(step)[1]).backward()
        for handle in handles:
            handle.remove()
        return [p.detach().clone() for p in model.parameters()]

    plain = run(make_gpt(tied=False))
    with framed(make_gpt(tied=False), rule, backend_name) as inside:
        assert same_gradients(plain, run(inside))


class SharedAndSkipped(GPT):
    """The first layer runs twice; the last is left out at random."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        x = self.blocks[0](self.blocks[0](x))
        x = self.blocks[1](x)
        if random.random() < 0.5:
            x = self.blocks[2](x)
        return self.head(self.norm(x))


def test_t26_a_block_used_twice_and_one_skipped_at_random(rule: Any, backend_name: str) -> None:
    def make() -> SharedAndSkipped:
        torch.manual_seed(0)
        random.seed(11)
        return SharedAndSkipped(dropout=0.1)

    plain = train(make(), 8)
    model = make()
    context = framed(model, rule, backend_name)
    random.seed(11)
    with context as inside:
        assert_same(plain, train(inside, 8))
    assert context.stats()["engine"]["live_storages"] == 0


def test_a_block_that_depends_on_hidden_state_is_an_error_not_a_wrong_gradient() -> None:
    model = make_gpt()
    calls = [0]
    inner = model.blocks[0].forward

    def moody(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        y = inner(*args, **kwargs)
        return y.sin() if calls[0] % 2 else y

    profile = profiled(model)
    model.blocks[0].forward = moody
    with hf.hyperframes(model, profile=profile, _backend=FakeBackend(recompute)) as inside:
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
        with pytest.raises(hf.RecomputeMismatch, match=r"blocks\.0"):
            loss.backward()
    assert "differ" in profiled(model).block("blocks.0").keep_reason


def test_training_flags_and_autocast_are_those_of_the_forward() -> None:
    plain = make_gpt(dropout=0.3)
    torch.manual_seed(5)
    loss = loss_of(plain(batch(0)[0]), batch(0)[1])
    plain.eval()
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    model = make_gpt(dropout=0.3)
    context = framed(model, recompute)
    with context as inside:
        torch.manual_seed(5)
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
        model.eval()
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        assert not model.blocks[0].training
    assert same_gradients(gradients(plain), gradients(model))


def test_unsupported_tensor_subclasses_are_refused_by_name() -> None:
    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    model = make_gpt()
    context = framed(model, peer)
    with context as inside, contextlib.suppress(TypeError):
        x = torch.randn(64, 64).as_subclass(Wrapped).requires_grad_()
        with pytest.raises(hf.Unimplemented, match="Wrapped"):
            x.sin().sum()
        inside(batch(0)[0])


def test_frames_that_outlive_the_context_can_still_be_used(backend_name: str) -> None:
    plain = make_gpt()
    loss_of(plain(batch(0)[0]), batch(0)[1]).backward()
    model = make_gpt()
    with framed(model, mixed, backend_name) as inside:
        loss = loss_of(inside(batch(0)[0]), batch(0)[1])
    loss.backward()
    assert same_gradients(gradients(plain), gradients(model))


def test_a_lease_asked_back_is_returned_and_training_goes_on() -> None:
    plain = train(make_gpt(), 4)
    model = make_gpt()
    backend = FakeBackend(peer)
    with hf.hyperframes(model, profile=profiled(model), _backend=backend) as inside:
        first = backend.engine

        def ask_back(step: int) -> None:
            if step == 1:
                first.revocation = "lease-7"

        assert_same(plain, train(inside, 4, each_step=ask_back))
    assert first.closed
    assert sum(backend.engine.puts) == 0


def test_profiling_leaves_no_trace() -> None:
    model = make_gpt(dropout=0.2)
    loss_of(model(batch(0)[0]), batch(0)[1]).backward()
    before = gradients(model)
    state = torch.get_rng_state()
    dictionaries = {name: set(m.__dict__) for name, m in model.named_modules()}
    profile = profiled(model)
    assert same_gradients(before, gradients(model))
    assert torch.equal(state, torch.get_rng_state())
    assert dictionaries == {name: set(m.__dict__) for name, m in model.named_modules()}
    assert hf.Profile.from_json(profile.to_json()) == profile
    table = profile.summary(1e9)
    for word in ("blocks.2", "Bill of memory", "Verdict", "transfer ms"):
        assert word in table


def test_the_profile_sums_to_what_a_plain_step_holds() -> None:
    model = make_gpt(dropout=0.1)
    profile = profiled(model)
    with hf.ActivationMeter(model) as meter:
        train(model, 1)
    assert profile.activation_bytes == meter.peak_bytes


def test_warnings_stay_away_from_an_ordinary_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with framed(make_gpt(), mixed) as inside:
            train(inside)
    assert VOCABULARY == 97
