"""Cases T1 to T10: what is saved, how, and how often it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperframes as hf
from cases.backends import BACKENDS
from cases.fake_engine import FakeBackend, Rule
from cases.small_gpt import DEVICE, batch, gradients, loss_of, make_gpt, same_gradients

SIZE = 64
Forward = Callable[..., torch.Tensor]


def by_tier(tier: str) -> Rule:
    return lambda block, storage: tier


class Layers(nn.Module):
    """Two layers that run a function given by the test between their matrices."""

    def __init__(self, function: Forward, *, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(_Layer(function) for _ in range(layers)).to(DEVICE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _Layer(nn.Module):
    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.second = nn.Linear(SIZE, SIZE)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.function(self.first(x)))


def sample() -> torch.Tensor:
    return torch.randn(96, SIZE, generator=torch.Generator().manual_seed(5)).to(DEVICE)


def plain_run(function: Forward, use: Callable[[nn.Module], Any]) -> tuple[Any, list[Any]]:
    model = Layers(function)
    answer = use(model)
    return answer, gradients(model)


@pytest.fixture(params=list(BACKENDS))
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["peer", "host", "recompute", "keep"])
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def framed_run(
    function: Forward, use: Callable[[nn.Module], Any], tier: str, backend_name: str = "unkind"
) -> tuple[Any, list[Any], dict[str, Any]]:
    model = Layers(function)
    profile = hf.profile(model, sample())
    context = hf.hyperframes(model, profile=profile, _backend=BACKENDS[backend_name](by_tier(tier)))
    with context as inside:
        answer = use(inside)
    return answer, gradients(model), context.stats()


def step(model: nn.Module) -> torch.Tensor:
    loss = model(sample()).square().mean()
    loss.backward()
    return loss.detach()


def assert_equal_runs(function: Forward, tier: str, backend_name: str) -> dict[str, Any]:
    plain = plain_run(function, step)
    loss, grads, stats = framed_run(function, step, tier, backend_name)
    assert torch.equal(plain[0], loss)
    assert same_gradients(plain[1], grads)
    assert stats["engine"]["live_storages"] == 0
    return stats


class _SlowView(torch.autograd.Function):
    """Saves a view; its backward works on it for a while before a later node reads the same."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x[8:, :], x.t())
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        part, turned = ctx.saved_tensors
        for _ in range(20):
            part.cos().sum()
        return grads[0] * turned.t().cos()


def test_t1_a_view_of_a_fetched_frame_stays_intact(tier: str, backend_name: str) -> None:
    assert_equal_runs(_SlowView.apply, tier, backend_name)


class _ReturnsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        return (x * scale).sum(0, keepdim=True).expand_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, scale = ctx.saved_tensors
        return scale.view_as(x), x.view_as(x)  # Views of what was unpacked, as gradients.


def test_t2_a_backward_that_returns_its_saved_tensor(tier: str, backend_name: str) -> None:
    assert_equal_runs(lambda x: _ReturnsSaved.apply(x.exp(), x.sin()), tier, backend_name)


def _odd_views(x: torch.Tensor) -> torch.Tensor:
    shifted = x[:, 1:] * x[:, 1:].exp()
    turned = x.t().exp().t()
    wide = x.sum(1, keepdim=True).expand(-1, SIZE).sigmoid() * x
    image = x.reshape(2, 4, 12, SIZE).to(memory_format=torch.channels_last)
    image = image.square() * image.permute(0, 1, 2, 3).sigmoid()
    return F.pad(shifted, (0, 1)) + turned + wide + image.reshape(96, SIZE)


def test_t3_offset_transposed_expanded_and_channels_last(tier: str, backend_name: str) -> None:
    assert_equal_runs(_odd_views, tier, backend_name)


class _RecordsGeometry(torch.autograd.Function):
    seen: list[tuple[Any, ...]] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        views = (x[:, 1:], x.t(), x[3:, 5:].expand(2, -1, -1), x[::2])
        ctx.save_for_backward(*views)
        ctx.before = [_geometry(view) for view in views]
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        _RecordsGeometry.seen.append((ctx.before, [_geometry(v) for v in ctx.saved_tensors]))
        storages = {view.untyped_storage()._cdata for view in ctx.saved_tensors}
        _RecordsGeometry.seen.append((1, len(storages)))
        return grads[0] * ctx.saved_tensors[1].t().cos()


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.sum().item(),
    )


def test_t3_sizes_strides_and_offsets_come_back(tier: str, backend_name: str) -> None:
    _RecordsGeometry.seen.clear()
    assert_equal_runs(_RecordsGeometry.apply, tier, backend_name)
    assert len(_RecordsGeometry.seen) >= 4
    for before, after in _RecordsGeometry.seen:
        assert before == after


def _fused(x: torch.Tensor) -> torch.Tensor:
    q, k, v = torch.cat([x, x + 1, x + 2], 1).split(SIZE, 1)
    return q * k * v


def test_t4_three_views_of_one_projection_are_right(tier: str, backend_name: str) -> None:
    assert_equal_runs(_fused, tier, backend_name)


def test_t4_three_views_of_one_projection_move_once() -> None:
    model = Layers(_fused)
    backend = FakeBackend(by_tier("peer"))
    with hf.hyperframes(model, sample_input=sample(), _backend=backend) as inside:
        loss = inside(sample()).square().mean()
        sizes = list(backend.engine.sizes.values())
        assert sizes.count(96 * 3 * SIZE * 4) == 2  # One in each layer; q, k and v were saved.
        loss.backward()


def _read_twice(x: torch.Tensor) -> torch.Tensor:
    """Two products read the same storage; what lies between them drops the first one's view."""
    y = x.sigmoid()
    return (y * x.tanh()).exp() + y * x.cos()


def test_a_storage_that_two_nodes_read_comes_back_once() -> None:
    model = Layers(_read_twice)
    backend = FakeBackend(by_tier("peer"))
    with hf.hyperframes(model, sample_input=sample(), _backend=backend) as inside:
        loss = inside(sample()).square().mean()
        moved = len(backend.engine.sizes)
        loss.backward()
        assert backend.engine.fetches == moved


def _mixture(x: torch.Tensor) -> torch.Tensor:
    return _SavesAnything.apply(x)


class _SavesAnything(torch.autograd.Function):
    seen: list[Any] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        index = torch.arange(3000)
        ctx.save_for_backward(index, torch.empty(0), torch.tensor(2.5), None, x)
        return x * 2.5

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        index, empty, scalar, nothing, _ = ctx.saved_tensors
        _SavesAnything.seen.append(
            (index.dtype, int(index[-1]), empty.numel(), float(scalar), nothing)
        )
        return grads[0] * scalar


def test_t6_integers_empty_scalar_and_none_are_untouched(tier: str, backend_name: str) -> None:
    _SavesAnything.seen.clear()
    assert_equal_runs(_mixture, tier, backend_name)
    assert set(_SavesAnything.seen) == {(torch.int64, 2999, 0, 2.5, None)}


def test_t7_parameters_tied_weights_and_buffers_never_move() -> None:
    model = make_gpt()
    backend = FakeBackend(by_tier("peer"))
    with hf.hyperframes(model, sample_input=batch(0)[0], _backend=backend) as inside:
        engine = backend.engine
        owned = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
        sources: list[int] = []
        put = engine.put

        def watch(*args: Any) -> Any:
            sources.append(args[3])
            return put(*args)

        engine.put = watch  # type: ignore[assignment, method-assign]
        loss_of(inside(batch(0)[0]), batch(0)[1]).backward()
    assert sources
    assert not owned & set(sources)


def _in_place_after_save(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y * 2
    y.add_(1)
    return z + y


def test_t8_in_place_after_save_is_eagers_error(tier: str, backend_name: str) -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as plain:
        plain_run(_in_place_after_save, step)

    def use(model: nn.Module) -> None:
        loss = model(sample()).square().mean()
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as framed:
            loss.backward()
        assert type(framed.value) is type(plain.value)
        assert "expected version 0 instead" in str(framed.value)

    _, _, stats = framed_run(_in_place_after_save, use, tier, backend_name)
    assert stats["mode"] == "on"


def test_t8_an_output_of_one_block_changed_after_another_saved_it(tier: str) -> None:
    model = Layers(torch.sigmoid)
    profile = hf.profile(model, sample())
    backend = FakeBackend(by_tier(tier))
    with hf.hyperframes(model, profile=profile, _backend=backend):
        x = model.layers[0](sample())
        y = model.layers[1](x)
        x.data.zero_().add_(1)  # Through .data: autograd itself does not see it.
        with torch.no_grad():
            x.mul_(2)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation|in place"):
            y.sum().backward()


def test_t8_the_newer_value_is_read_when_the_older_is_not_needed(
    tier: str, backend_name: str
) -> None:
    alive: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1.0
        alive.append(y.sin())  # Saves y as it is now; never part of the loss.
        y.mul_(3.0)
        return y.sin()  # Saves y as it is then.

    plain = plain_run(function, step)
    loss, grads, _ = framed_run(function, step, tier, backend_name)
    assert torch.equal(plain[0], loss)
    assert same_gradients(plain[1], grads)


def test_t8_an_unsaved_weight_changed_before_recomputation_is_refused() -> None:
    """The first matrix is not saved, for the input needs no gradient: eager would not mind."""

    def use(model: nn.Module) -> None:
        loss = model(sample()).square().mean()
        with torch.no_grad():
            model.layers[0].first.weight.mul_(0.5)  # type: ignore[index, union-attr]
        with pytest.raises(
            hf.FailedPrecondition, match=r"first\.weight of block layers\.0 changed"
        ):
            loss.backward()

    framed_run(torch.sigmoid, use, "recompute")


def test_t8_other_dtypes_in_the_recomputation_are_refused() -> None:
    calls = [0]

    def function(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return x.double().sin().float() if calls[0] > 6 else x.sin()

    def use(model: nn.Module) -> None:
        calls[0] = 5  # The profile is done: one more call as it was, then others.
        loss = model.layers[0](sample()).square().mean()  # type: ignore[index, operator]
        with pytest.raises(hf.RecomputeMismatch, match=r"layers\.0: tensor"):
            loss.backward()

    framed_run(function, use, "recompute")


def test_t8_a_parameter_changed_before_backward_is_refused(tier: str) -> None:
    def use(model: nn.Module) -> None:
        loss = model(sample()).square().mean()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        with pytest.raises(RuntimeError, match=r"modified by an inplace|changed between"):
            loss.backward()

    framed_run(torch.sigmoid, use, tier)


class _ReadsTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        once = ctx.saved_tensors[0].cos().clone()
        assert torch.equal(once, ctx.saved_tensors[0].cos())
        return grads[0] * once


def test_t9_saved_tensors_may_be_read_twice(tier: str, backend_name: str) -> None:
    assert_equal_runs(_ReadsTwice.apply, tier, backend_name)


def test_t9_a_retained_graph_gives_the_same_gradients_again(tier: str, backend_name: str) -> None:
    def use(model: nn.Module) -> torch.Tensor:
        loss = model(sample()).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss.detach()

    plain = plain_run(torch.sigmoid, use)
    loss, grads, stats = framed_run(torch.sigmoid, use, tier, backend_name)
    assert torch.equal(plain[0], loss)
    assert same_gradients(plain[1], grads)
    assert stats["engine"]["live_storages"] == 0


def test_t9_a_double_backward_is_right(tier: str, backend_name: str) -> None:
    def use(model: nn.Module) -> torch.Tensor:
        x = sample().requires_grad_()
        loss = model(x).square().mean()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + grad.square().sum()).backward()
        return grad.detach()

    plain = plain_run(torch.tanh, use)
    grad, grads, _ = framed_run(torch.tanh, use, tier, backend_name)
    assert torch.equal(plain[0], grad)
    assert same_gradients(plain[1], grads)


def test_t10_input_gradient_first_weight_gradients_later(tier: str, backend_name: str) -> None:
    def use(model: nn.Module) -> list[torch.Tensor]:
        x = sample().requires_grad_()
        loss = model(x).square().mean()
        (grad,) = torch.autograd.grad(loss, x, retain_graph=True)
        later = torch.autograd.grad(loss, list(model.parameters()))
        return [grad, *later]

    plain = plain_run(torch.sigmoid, use)
    found, _, stats = framed_run(torch.sigmoid, use, tier, backend_name)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], found, strict=True))
    assert stats["engine"]["live_storages"] == 0
