"""The output layer and the cross entropy behind it, without ever holding all logits."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .errors import InvalidArgument

_CHUNK_BYTES = 256 << 20  # Of fp32 logits alive at a time, where no chunk is given.
_LEAST_CHUNK = 128  # Tokens: below, matrix multiplications no longer fill a GPU.
_REDUCTIONS = ("mean", "sum", "none")


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    chunk: int | None = None,
    ignore_index: int = -100,
    shift: bool = False,
    reduction: str = "mean",
) -> torch.Tensor:
    """``cross_entropy(linear(hidden, weight).float(), labels)`` with one chunk of logits alive.

    Logits of T tokens over a vocabulary of V take 4 T V bytes in fp32, and their gradient as much
    again: 34 GB in all for 32,768 tokens and 128,256 words, more than many a model's activations.
    Here forward keeps one number per token, ``logsumexp``; backward makes each chunk's logits
    again (one more multiplication with ``weight``, so four in place of three) and turns them into
    gradients at once:

        loss_t = logsumexp(z_t) - z_t[label_t],  z_t = weight hidden_t
        d hidden_t = g_t (softmax(z_t) - onehot(label_t)) weight
        d weight = sum over t of g_t (softmax(z_t) - onehot(label_t)) hidden_t

    Logits are rounded to the dtype of the multiplication, as ``linear`` rounds them; everything
    from there to their gradient is fp32, and the gradient of ``weight`` is summed over chunks in
    fp32 (4 V H bytes during backward). Results differ from the unchunked ones by rounding only:
    within 1e-5 of the largest gradient in fp32, and within 2 units in the last place of the largest
    one in bf16. Two runs are equal to the last bit. A frozen weight (``requires_grad=False``) gets
    no gradient and costs none; a weight tied to the embedding gets its share of the gradient.

    Under ``torch.autocast`` the multiplications run in autocast's dtype. DistributedDataParallel
    needs nothing special as long as ``weight`` is used inside the wrapped module's forward. FSDP2
    (``fully_shard``) shows weights unsharded only between a module's forward and its reshard: call
    this in the forward of the module that owns ``weight``, or after the root's forward (a root is
    not resharded by default). Other sharded weights are refused.

    Args:
        hidden: (..., T, H), floating point.
        weight: (V, H), as of ``nn.Linear(H, V, bias=False)``.
        labels: (..., T), int64; at most V - 1, or ``ignore_index``.
        chunk: tokens whose logits are alive at a time. None: as many as make 256 MiB in fp32, but
            128 at least.
        ignore_index: tokens with this label have no loss and no gradient.
        shift: token t predicts label t + 1 of its sequence, as causal language models are trained;
            the last token predicts nothing. Nothing is copied for it.
        reduction: "mean" over the tokens that are not ignored (NaN when all are), "sum", or "none".

    Returns:
        A scalar in fp32; with "none" one loss per token, (..., T), 0 where ignored.

    Raises:
        InvalidArgument: shapes, dtypes or devices that do not fit, a sharded weight, a chunk below
            1, an unknown reduction.
    """
    _check(hidden, weight, labels, chunk, reduction)
    if shift:
        last = torch.full_like(labels[..., :1], ignore_index)
        labels = torch.cat((labels[..., 1:], last), dim=-1)
    size = chunk or max(_LEAST_CHUNK, _CHUNK_BYTES // (4 * weight.shape[0]))
    flat = labels.reshape(-1)
    losses: torch.Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]), weight, flat, size, ignore_index, _dtype_for(hidden)
    )
    if reduction == "none":
        return losses.view(labels.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / (flat != ignore_index).sum()


def _dtype_for(hidden: torch.Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    chunk: int | None,
    reduction: str,
) -> None:
    if type(weight).__name__ == "DTensor":
        raise InvalidArgument(
            "weight is a DTensor, a shard of what the loss needs: call chunked_cross_entropy where "
            "FSDP2 has gathered it (in its module's forward), or give weight.full_tensor()."
        )
    shapes = f"hidden {list(hidden.shape)}, weight {list(weight.shape)}"
    if hidden.dim() < 2 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        raise InvalidArgument(f"{shapes}: use (..., T, H) and (V, H) with one H.")
    if labels.shape != hidden.shape[:-1]:
        raise InvalidArgument(f"{shapes}, labels {list(labels.shape)}: use one label per token.")
    if labels.dtype != torch.int64:
        raise InvalidArgument(f"labels are {labels.dtype}: use torch.int64.")
    if not (hidden.is_floating_point() and weight.is_floating_point()):
        raise InvalidArgument(f"hidden is {hidden.dtype}, weight {weight.dtype}: use floats.")
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise InvalidArgument(
            f"hidden is {hidden.dtype} and weight {weight.dtype}: convert one, or use autocast."
        )
    if not hidden.device == weight.device == labels.device:
        raise InvalidArgument(
            f"hidden is on {hidden.device}, weight on {weight.device}, labels on {labels.device}: "
            "move them together."
        )
    if chunk is not None and chunk < 1:
        raise InvalidArgument(f"chunk={chunk}: use 1 token or more.")
    if reduction not in _REDUCTIONS:
        raise InvalidArgument(f"reduction={reduction!r}: choose among {', '.join(_REDUCTIONS)}.")


class _ChunkedLoss(torch.autograd.Function):
    """One loss per token. Saves hidden, weight, labels and one fp32 number per token."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        chunk: int,
        ignore_index: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ignored = labels == ignore_index
        targets = labels.masked_fill(ignored, 0).unsqueeze(1)
        log_sums = torch.empty(len(labels), dtype=torch.float32, device=hidden.device)
        losses = torch.empty_like(log_sums)
        with torch.autocast(hidden.device.type, enabled=False):
            transposed = weight.to(dtype).t()
            for start in range(0, len(labels), chunk):
                part = slice(start, start + chunk)
                logits = (hidden[part].to(dtype) @ transposed).float()
                torch.logsumexp(logits, dim=1, out=log_sums[part])
                losses[part] = log_sums[part] - logits.gather(1, targets[part]).squeeze(1)
        ctx.save_for_backward(hidden, weight, targets, ignored, log_sums)
        ctx.chunk, ctx.dtype = chunk, dtype
        return losses.masked_fill_(ignored, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, targets, ignored, log_sums = ctx.saved_tensors
        scale = gradient.float().masked_fill(ignored, 0.0).unsqueeze(1)
        for_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for_weight = (
            torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        )
        with torch.autocast(hidden.device.type, enabled=False):
            used = weight.to(ctx.dtype)
            for start in range(0, len(targets), ctx.chunk):
                part = slice(start, start + ctx.chunk)
                given = hidden[part].to(ctx.dtype)
                logits = (given @ used.t()).float()
                slope = logits.sub_(log_sums[part].unsqueeze(1)).exp_()
                right = slope.gather(1, targets[part])
                slope.scatter_(1, targets[part], right - 1.0)
                rounded = slope.mul_(scale[part]).to(ctx.dtype)
                del logits, slope
                if for_hidden is not None:
                    for_hidden[part] = rounded @ used
                if for_weight is not None:
                    for_weight += rounded.t() @ given
        if for_weight is not None:
            for_weight = for_weight.to(weight.dtype)
        return for_hidden, for_weight, None, None, None, None
