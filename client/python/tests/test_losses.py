"""The chunked loss against torch's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import chunked_loss
import hyperframes as hf

TOKENS, WIDTH, WORDS = 75, 16, 101


def data(
    dtype: torch.dtype = torch.float32, *shape: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = shape or (TOKENS,)
    hidden = torch.randn((*shape, WIDTH), generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn((WORDS, WIDTH), generator=generator) / 4).to(dtype).requires_grad_()
    labels = torch.randint(WORDS, shape, generator=generator)
    labels[..., 5:9] = -100
    return hidden, weight, labels


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, reduction: str = "mean"
) -> torch.Tensor:
    logits = F.linear(hidden, weight).float()
    flat = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction=reduction)
    return flat.view(labels.shape) if reduction == "none" else flat


def gradients(loss: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if loss.dim():
        loss = (loss * torch.linspace(-1, 2, loss.numel()).view(loss.shape)).sum()
    return torch.autograd.grad(loss, inputs)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """As the docstring promises: relative to the largest entry."""
    assert found.dtype == expected.dtype
    share = 1e-5 if expected.dtype == torch.float32 else 2 * torch.finfo(expected.dtype).eps
    error = (found.double() - expected.double()).abs().max()
    assert error <= share * expected.double().abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("chunk", [1, 7, 25, 75, 1000, None])
def test_losses_and_gradients_are_those_of_torch(
    chunk: int | None, reduction: str, dtype: torch.dtype
) -> None:
    hidden, weight, labels = data(dtype)
    expected = plain(hidden, weight, labels, reduction)
    found = hf.chunked_cross_entropy(hidden, weight, labels, chunk=chunk, reduction=reduction)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    pairs = zip(
        gradients(found, hidden, weight), gradients(expected, hidden, weight), strict=True
    )  # fmt: skip
    for mine, theirs in pairs:
        assert_close(mine, theirs)


def test_two_runs_are_equal_to_the_last_bit() -> None:
    hidden, weight, labels = data(torch.bfloat16)

    def once() -> tuple[torch.Tensor, ...]:
        loss = hf.chunked_cross_entropy(hidden, weight, labels, chunk=7)
        return (loss, *gradients(loss, hidden, weight))

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


def test_shift_predicts_the_next_label_of_the_same_sequence() -> None:
    hidden, weight, labels = data(torch.float32, 3, 20)
    expected = plain(hidden[:, :-1], weight, labels[:, 1:])
    found = hf.chunked_cross_entropy(hidden, weight, labels, chunk=6, shift=True)
    torch.testing.assert_close(found, expected)
    assert_close(gradients(found, hidden)[0], gradients(expected, hidden)[0])


def test_ignored_tokens_have_no_loss_and_no_gradient() -> None:
    hidden, weight, labels = data()
    labels[labels == -100] = 9
    labels[20:40] = 9
    losses = hf.chunked_cross_entropy(
        hidden, weight, labels, chunk=8, ignore_index=9, reduction="none"
    )
    ignored = labels == 9
    assert not losses[ignored].any() and losses[~ignored].all()
    assert not gradients(losses, hidden)[0][ignored].any()


def test_a_frozen_weight_gets_no_gradient() -> None:
    hidden, weight, labels = data()
    weight.requires_grad_(False)
    hf.chunked_cross_entropy(hidden, weight, labels, chunk=8).backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_a_weight_tied_to_the_embedding_gets_both_gradients() -> None:
    _, _, labels = data()
    ids = labels.clamp(min=0)
    weight = nn.Parameter(torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(1)))
    found = hf.chunked_cross_entropy(F.embedding(ids, weight), weight, labels, chunk=8)
    expected = plain(F.embedding(ids, weight), weight, labels)
    assert_close(gradients(found, weight)[0], gradients(expected, weight)[0])


def test_autocast_multiplies_in_its_own_dtype() -> None:
    hidden, weight, labels = data()
    with torch.autocast("cpu", torch.bfloat16):
        found = hf.chunked_cross_entropy(hidden, weight, labels, chunk=10)
        expected = plain(hidden, weight, labels)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(
        gradients(found, hidden, weight), gradients(expected, hidden, weight), strict=True
    ):
        assert mine.dtype == torch.float32
        error = (mine - theirs).abs().max()
        assert error <= 2 * torch.finfo(torch.bfloat16).eps * theirs.abs().max()


def test_a_loss_scale_keeps_what_would_underflow() -> None:
    hidden, weight, labels = data(torch.float16)
    scale = 2.0**16
    found = gradients(hf.chunked_cross_entropy(hidden, weight, labels) * scale, hidden)[0]
    expected = gradients(plain(hidden, weight, labels) * scale, hidden)[0]
    assert_close(found, expected)


def test_no_more_than_a_chunk_of_logits_is_alive() -> None:
    hidden, weight, labels = data()
    seen: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape[-1:] == (WORDS,):
                seen.append(out.numel() // WORDS)
            return out

    with Watch():
        hf.chunked_cross_entropy(hidden, weight, labels, chunk=10).backward()
    assert max(n for n in seen if n != WIDTH) == 10


def test_nothing_is_kept_for_backward_but_what_was_given() -> None:
    hidden, weight, labels = data()
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hf.chunked_cross_entropy(hidden, weight, labels, chunk=10)
    given = [t for t in saved if t.data_ptr() in (hidden.data_ptr(), weight.data_ptr())]
    assert len(given) == 2
    assert max(t.numel() for t in saved if all(t is not g for g in given)) == TOKENS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chunk": 0}, "chunk=0"),
        ({"reduction": "median"}, "choose among mean, sum, none"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "one label per token"),
        ({"labels": torch.zeros(TOKENS)}, "torch.int64"),
        ({"weight": torch.zeros(WORDS, WIDTH + 1)}, "one H"),
        ({"weight": torch.zeros(WORDS, WIDTH, dtype=torch.bfloat16)}, "convert one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    hidden, weight, labels = data()
    values: dict[str, object] = {"hidden": hidden, "weight": weight, "labels": labels, **change}
    tensors = [values.pop(name) for name in ("hidden", "weight", "labels")]
    with pytest.raises(hf.InvalidArgument, match=words):
        hf.chunked_cross_entropy(*tensors, **values)  # type: ignore[arg-type]


def test_the_example_holds_a_fraction_of_the_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERFRAMES_HOST_DEVICES", "2 x 64MiB")
    (plain_loss, everything), (loss, without_logits), (framed_loss, framed) = (
        chunked_loss.main().values()
    )
    assert abs(loss - plain_loss) < 1e-4
    assert framed_loss == loss
    assert framed < without_logits < everything / 2


RANK_PROGRAM = """
import sys, torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
import hyperframes as hf

rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.token = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64, bias=False)
    def forward(self, ids, plain=False):
        hidden = torch.tanh(self.token(ids))
        if plain is None:
            return hidden
        if plain:
            return F.cross_entropy(self.head(hidden).float(), ids)
        return hf.chunked_cross_entropy(hidden, self.head.weight, ids, chunk=7)

def batch(of):
    return torch.randint(64, (40,), generator=torch.Generator().manual_seed(of))

def close(found, expected):
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max(), (found, expected)

expected = Model()
((expected(batch(0), True) + expected(batch(1), True)) / 2).backward()

inside = nn.parallel.DistributedDataParallel(Model())
inside(batch(rank)).backward()
close(inside.module.head.weight.grad, expected.head.weight.grad)
close(inside.module.token.weight.grad, expected.token.weight.grad)

sharded = Model()
try:
    fully_shard(sharded)
    hf.chunked_cross_entropy(torch.zeros(3, 16), sharded.head.weight, batch(0)[:3])
    raise SystemExit("a shard was taken for the weight")
except hf.InvalidArgument as error:
    assert "DTensor" in str(error), error
hidden = sharded(batch(rank), None)  # The root is not resharded: its weight is whole here.
hf.chunked_cross_entropy(hidden, sharded.head.weight, batch(rank), chunk=7).backward()
close(sharded.head.weight.grad.full_tensor(), expected.head.weight.grad)
close(sharded.token.weight.grad.full_tensor(), expected.token.weight.grad)
# Or gloo's threads, letting go of the last gather's tensors while Python ends, abort the process.
dist.barrier()
dist.destroy_process_group()
"""


def test_gradients_are_averaged_under_ddp_and_fsdp2(tmp_path: Path) -> None:
    package = Path(hf.__file__).resolve().parents[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, str(rank), str(tmp_path / "rendezvous")],
            env={**os.environ, "PYTHONPATH": str(package)}, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    ended = [(rank.communicate(timeout=120)[1], rank.returncode) for rank in ranks]
    assert all(not code for _, code in ended), ended
