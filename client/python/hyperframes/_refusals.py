"""What HyperFrames refuses before the first step, by sentences that name module and remedy."""

from __future__ import annotations

from torch import nn

from .errors import FailedPrecondition

_FLAGS = ("gradient_checkpointing", "is_gradient_checkpointing", "grad_checkpointing")
_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DDP or DataParallel; block names are then the user's own."""
    while type(model).__name__ in _WRAPPERS:
        model = model.module  # type: ignore[assignment]
    if type(model).__name__ == "OptimizedModule":
        raise FailedPrecondition(
            "The whole model is compiled, so hooks run only after its whole forward: compile each "
            "block instead (for layer in model.layers: layer.compile())."
        )
    return model


def is_compiled(module: nn.Module) -> bool:
    """torch.compile is on the block: its backward may overwrite an unpacked tensor."""
    return (
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
    )


def refuse_checkpointing(model: nn.Module, allowed: bool) -> None:
    """FailedPrecondition: gradient checkpointing is on somewhere in the model."""
    if allowed:
        return
    for name, module in model.named_modules():
        wrapped = type(module).__name__ == "CheckpointWrapper"
        flag = next((flag for flag in _FLAGS if module.__dict__.get(flag) is True), None)
        if wrapped or flag:
            what = "is a CheckpointWrapper" if wrapped else f"has {flag}=True"
            raise FailedPrecondition(
                f"Gradient checkpointing is already on: {name or type(model).__name__} {what}. "
                "HyperFrames decides itself what is recomputed. Call "
                "model.gradient_checkpointing_disable() (or unwrap the module), or pass "
                "allow_checkpointing=True."
            )
