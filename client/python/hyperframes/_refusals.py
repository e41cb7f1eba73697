"""What HyperFrames refuses before the first step, by sentences that name module and remedy."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn

from . import _guard
from ._blocks import holds_stack
from ._compiled import is_compiled as is_compiled
from ._compiled import records_graphs, refuse_whole
from ._meter import ActivationMeter, passing_hooks, top_hooks
from .errors import FailedPrecondition, Unimplemented

_FLAGS = (
    "gradient_checkpointing", "is_gradient_checkpointing", "grad_checkpointing",
    "activation_checkpointing", "is_activation_checkpointing",
)  # fmt: skip
_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DDP or DataParallel; block names are then the user's own.

    FailedPrecondition: the model, or a part of it that holds many layers, is compiled as a whole.
    Unimplemented: a part is compiled into CUDA graphs.
    """
    model = unwrap_data_parallel(model)
    if is_compiled(model):
        refuse_whole("The whole model is compiled")
    for name, part in model.named_modules():
        if not is_compiled(part):
            continue
        if holds_stack(part):
            refuse_whole(f"{name} is compiled with all its layers")
        if records_graphs(part) and _is_on_gpu(part):
            refuse_own_graphs(name)
    return model


def refuse_own_graphs(name: str) -> NoReturn:
    """Unimplemented: a part of the model replays CUDA graphs of its own."""
    raise Unimplemented(
        f"{name} is compiled into CUDA graphs (mode='reduce-overhead', or "
        "torch._inductor.config.triton.cudagraphs): a graph owns the memory of what it saves and "
        "replays fixed addresses, so that nothing of it can move. Compile with mode='default' or "
        "mode='max-autotune-no-cudagraphs'."
    )


def _is_on_gpu(module: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in module.parameters())


def unwrap_data_parallel(model: nn.Module) -> nn.Module:
    """The module inside DDP or DataParallel, compiled or not."""
    while type(model).__name__ in _WRAPPERS:
        model = model.module  # type: ignore[assignment]
    return model


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
                "model.gradient_checkpointing_disable() (with transformers' Trainer: "
                "gradient_checkpointing=False in its arguments; or unwrap the module), or pass "
                "allow_checkpointing=True."
            )


def refuse_graph_capture(device: torch.device) -> None:
    """Unimplemented: the step is being captured into a CUDA graph."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise Unimplemented(
            "A CUDA graph is being captured around the model: a graph replays fixed addresses, and "
            "HyperFrames moves storages between steps. Run the step without the graph, or this "
            "model with HYPERFRAMES_MODE=off."
        )


def refuse_moved_model(model: nn.Module, device: torch.device) -> None:
    """FailedPrecondition: the model is no longer where its frames were planned."""
    now = next(model.parameters()).device
    if now != device:
        raise FailedPrecondition(
            f"The model was on {device} when its frames were planned and is on {now} now: nothing "
            "would be moved. Open the context after moving it, or give no profile and no "
            "sample_input: then the first batch is the sample, wherever the model is by then."
        )


def refuse_outer_hooks() -> None:
    """FailedPrecondition: an offloader is at work around us. A meter of ours may be."""
    top = top_hooks()
    if top is not None and not isinstance(getattr(top[0], "__self__", None), ActivationMeter):
        raise FailedPrecondition(
            "Saved-tensor hooks are already installed here (an offloader such as save_on_cpu, or "
            "another HyperFrames context): only one pair runs, so one would silently replace the "
            "other. Leave that context first."
        )


def judge_inner_hooks(hooks: Any, where: str, allow_checkpointing: bool) -> bool:
    """Hooks are entered inside the model. True: an allowed checkpoint.

    FailedPrecondition: checkpointing that was not allowed, or an offloader.
    """
    if isinstance(hooks, passing_hooks) or _guard.is_checkpoint_recomputation(hooks):
        return False
    if _guard.is_checkpoint(hooks):
        if allow_checkpointing:
            return True
        raise FailedPrecondition(
            f"Gradient checkpointing is already on: {where} calls torch.utils.checkpoint. "
            "HyperFrames decides itself what is recomputed. Call "
            "model.gradient_checkpointing_disable() or remove the checkpoint call, or pass "
            "allow_checkpointing=True."
        )
    raise FailedPrecondition(
        f"{type(hooks).__name__} was entered in {where}: it would replace HyperFrames' hooks "
        "there and take its tensors out of the plan. Remove it, or leave HyperFrames first."
    )


def refuse_subclass(tensor: torch.Tensor, where: str) -> NoReturn:
    """Unimplemented: a saved tensor that is more than its storage."""
    raise Unimplemented(
        f"{where} saves a {type(tensor).__name__} for backward, a tensor subclass that HyperFrames "
        "cannot move or rebuild: unwrap it (for DTensor: to_local()), or run this model with "
        "HYPERFRAMES_MODE=off."
    )
