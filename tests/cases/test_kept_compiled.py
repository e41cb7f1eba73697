"""Case T22: compiled blocks that must not run again are kept, and the profile says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

import hyperframes as hf
from cases.framing import profiled
from cases.small_gpt import DEVICE, batch, loss_of, make_gpt
from cases.test_compiled_blocks import WAYS
from cases.test_recomputed_compiled import ALL, Watching, again, compiled, ran_again
from hyperframes import _refusals


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def reason(**compile_options: Any) -> str:
    model = make_gpt()
    for block in model.blocks:
        block.compile(**compile_options)
    reasons = {b.keep_reason for b in profiled(model).blocks if b.name.startswith("blocks")}
    assert len(reasons) == 1
    return reasons.pop()


@pytest.mark.parametrize("whole", [False, True])
def test_t22_cuda_graphs_of_a_block_are_refused_by_name(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_gpt()
    if whole:
        block: Any = torch.compile(model.blocks[1], mode="reduce-overhead")
        model.blocks[1] = block
    else:
        model.blocks[1].compile(mode="reduce-overhead")
    monkeypatch.setattr(_refusals, "_is_on_gpu", lambda module: True)
    for use in (profiled, hf.hyperframes):
        with pytest.raises(
            hf.Unimplemented, match=r"blocks\.1 is compiled into CUDA graphs"
        ) as why:
            use(model)
        assert "max-autotune-no-cudagraphs" in str(why.value)


def test_t22_a_backend_that_records_no_graphs_is_not_refused_for_inductors_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_refusals, "_is_on_gpu", lambda module: True)
    with inductor.patch({"triton.cudagraphs": True}):
        assert reason(backend="aot_eager") == ""
        with pytest.raises(hf.Unimplemented, match="is compiled into CUDA graphs"):
            reason(backend="inductor")


def test_t22_graphs_that_only_show_as_they_run_are_refused_too() -> None:
    class Overwritten(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(
                "Error: accessing tensor output of CUDAGraphs that has been overwritten by a "
                "subsequent run."
            )

    model = nn.Sequential(nn.Linear(4, 4), Overwritten())
    with pytest.raises(hf.Unimplemented, match="A block of the model is compiled into CUDA graphs"):
        hf.profile(model, torch.ones(2, 4))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there are no graphs on a processor")
def test_t22_a_mode_that_means_graphs_on_gpus_is_a_plain_one_on_processors() -> None:
    assert reason(mode="reduce-overhead") == ""


@pytest.mark.parametrize("name", list(WAYS))
def test_t22_hooks_that_are_compiled_with_a_block_run_once(name: str) -> None:
    ids, targets = batch(0)
    seen: list[str] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        seen.append("ran")

    def partly(block: nn.Module, backend: Any) -> Any:
        return WAYS[name](block, backend, fullgraph=False)

    model = compiled(Watching(), partly)
    inner = getattr(model.blocks[1], "_orig_mod", model.blocks[1])
    hook = inner.register_forward_hook(note)
    assert "hooks of its own" in profiled(model).block("blocks.1").keep_reason
    hook.remove()
    context = again(model)
    with context as inside:
        inner.register_forward_hook(note)
        seen.clear()
        loss_of(inside(ids), targets).backward()
    assert seen == ["ran"]
    assert ran_again(context) == ALL - {"blocks.1"}


def test_t22_a_backend_that_gives_every_run_the_same_memory_keeps_it() -> None:
    def overwriting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        inner = Watching()(graph, inputs)
        outputs: list[torch.Tensor] = []

        def run(*args: Any) -> Any:
            made = inner(*args)
            with torch.no_grad():
                for old in outputs:
                    old.detach().fill_(7)
            outputs[:] = [leaf for leaf in made if isinstance(leaf, torch.Tensor)]
            return made

        return run

    assert "two runs from one random state differ" in reason(backend=overwriting)


def test_t22_compiled_code_that_counts_its_runs_keeps_it() -> None:
    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        inner, count = Watching()(graph, inputs), 0

        def run(*args: Any) -> Any:
            nonlocal count
            count += 1
            return [leaf + count for leaf in inner(*args)]

        return run

    assert reason(backend=counting) == "two runs from one random state differ"


def test_t22_a_backend_without_ahead_of_time_autograd_keeps_it() -> None:
    assert "cannot be told from another version" in reason(backend="eager")
