"""Profiles: which storages each block leaves for backward, and what it costs to make them again."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from ._blocks import REST

Signature = tuple[tuple[tuple[int, ...], str], ...]

_WORTH, _MODEST = 2.0, 1.0  # A against P: thresholds of the verdict.
_SMALL_PARAMETERS, _SMALL_TOKENS = 1_000_000_000, 1024


@dataclass
class StorageInfo:
    """One allocation saved for backward. Bytes; shape of the first view that was saved."""

    ordinal: int
    nbytes: int
    dtype: str
    shape: list[int]
    is_input: bool = False
    unmovable_reason: str = ""
    unstable: bool = False
    consumers: int = 0

    def to_wire(self) -> dict[str, Any]:
        """StorageProfile of the wire."""
        return {
            "ordinal": self.ordinal,
            "bytes": self.nbytes,
            "dtype": self.dtype,
            "shape": self.shape,
            "is_input": self.is_input,
            "unmovable": bool(self.unmovable_reason),
            "unmovable_reason": self.unmovable_reason,
            "unstable": self.unstable,
            "consumers": max(self.consumers, 1),
        }


@dataclass
class PhaseInfo:
    """A part of a block's backward: from where it first reads a storage until the next one.

    Attributes:
        reads: ordinal of that storage; -1 before any is read.
        in_use_bytes: of the storages read so far, those not given back at the phase's start.
        working_bytes: most bytes in the phase beyond the storages still to be read.
    """

    reads: int
    in_use_bytes: int
    working_bytes: int


@dataclass
class SharedRead:
    """A storage that one block saved and others read again, in the backward of one of them.

    Attributes:
        block: that saved it first.
        ordinal: in that block.
        nbytes: of it.
        phases: of the backward that reads it, by index: those in which it is there for that.
    """

    block: str
    ordinal: int
    nbytes: int
    phases: list[int]


@dataclass
class SelectiveStorage:
    """What one expensive operator of a block leaves; saving it spares running the operator again.

    Attributes:
        ordinal: the operator's position among those of the block that count: the same on every
            rank, whatever was measured there.
        op: "aten.mm.default".
        nbytes: of all its outputs that may move, each but the last padded to a slot.
        kept_bytes: of its other outputs, which are too small to move.
        recompute_s: seconds that the operator takes.
        is_saved: the block saves it for backward too.
        always: saved whenever the block is SELECTIVE: what it decides must not be decided twice.
        random: it draws random numbers.
    """

    ordinal: int
    op: str
    nbytes: int
    dtype: str
    shape: list[int]
    recompute_s: float
    is_saved: bool = False
    always: bool = False
    random: bool = False
    unmovable_reason: str = ""
    kept_bytes: int = 0

    def to_wire(self) -> dict[str, Any]:
        """SelectiveStorage of the wire."""
        return {
            "ordinal": self.ordinal,
            "bytes": self.nbytes,
            "recompute_s": self.recompute_s,
            "is_saved": self.is_saved,
            "unmovable": bool(self.unmovable_reason),
            "always": self.always,
            "kept_bytes": self.kept_bytes,
            "op": self.op,
        }


@dataclass
class BlockInfo:
    """One block in one forward. Seconds; ``keep_reason`` says why it cannot be recomputed."""

    name: str
    forward_s: float = 0.0
    backward_s: float = 0.0
    storages: list[StorageInfo] = field(default_factory=list)
    keep_reason: str = ""
    splittable: bool = False
    transient_bytes: int = 0
    gradient_bytes: int = 0  # That its backward makes, of its own parameters.
    phases: list[PhaseInfo] = field(default_factory=list)  # Of its backward; empty: unknown.
    # Other blocks' storages that it reads, which its phases do not count, and its own that other
    # blocks read, which they do.
    shared: list[SharedRead] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)  # Index among outputs, own ordinal.
    collectives: bool = False  # Its forward communicates with other ranks.
    input_shapes: list[list[int]] = field(default_factory=list)
    output_shapes: list[list[int]] = field(default_factory=list)
    # What may be saved of it under SELECTIVE, and how long it then takes to run again with all of
    # that saved; or why nothing is.
    selective: list[SelectiveStorage] = field(default_factory=list)
    selective_base_s: float = 0.0
    selective_reason: str = ""
    # When it runs again and nobody holds what it saves: most bytes of its own storages alive at
    # once, and on CUDA the allocator's peak beyond the start. 0: unknown, and maybe why.
    rerun_bytes: int = 0
    rerun_working_bytes: int = 0
    rerun_reason: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes that the block leaves under SAVE."""
        return sum(storage.nbytes for storage in self.storages)

    def to_wire(self, *, gradients_absent: bool) -> dict[str, Any]:
        """BlockProfile of the wire, of a step that begins with or without gradients."""
        return {
            "name": self.name,
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
            "storages": [storage.to_wire() for storage in self.storages],
            "not_recomputable": bool(self.keep_reason),
            "splittable": self.splittable,
            "transient_bytes": self.transient_bytes,
            "gradient_bytes": self.gradient_bytes if gradients_absent else 0,
            "phases": [dataclasses.asdict(phase) for phase in self.phases],
            "read_any_time": self.name == REST,
            "selective": [storage.to_wire() for storage in self.selective],
            "selective_base_s": self.selective_base_s,
            **({"rerun_bytes": self.rerun_bytes} if self.rerun_bytes else {}),
            **(
                {"rerun_working_bytes": self.rerun_working_bytes}
                if self.rerun_working_bytes
                else {}
            ),
        }


@dataclass
class CopySlowdown:
    """By which share compute takes longer beside copies to a tier: 0.08 is 8 %.

    Attributes:
        tier: "peer" or "host".
        out: while frames go there.
        back: while they come back.
    """

    tier: str
    out: float
    back: float

    def to_wire(self) -> dict[str, float]:
        """CopySlowdown of the wire."""
        return {"out": self.out, "in": self.back}


@dataclass
class Profile:
    """What :func:`profile` measured. Blocks are in order of execution."""

    blocks: list[BlockInfo]
    signature: Signature = ()
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    buffer_bytes: int = 0
    parameters: int = 0
    dtype: str = ""
    exact: bool = True  # False: scaled from another input shape.
    copy_slowdowns: list[CopySlowdown] = field(default_factory=list)  # By tier; a GPU's only.
    copy_slowdown_note: str = ""  # How they were measured, or why not.

    @property
    def resident_bytes(self) -> int:
        """P: weights, gradients, optimizer states, buffers."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes

    @property
    def activation_bytes(self) -> int:
        """A: what all blocks leave under SAVE."""
        return sum(block.nbytes for block in self.blocks)

    def block(self, name: str) -> BlockInfo:
        """KeyError when there is none."""
        for block in self.blocks:
            if block.name == name:
                return block
        raise KeyError(name)

    def to_json(self) -> str:
        """Everything, for from_json()."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Profile:
        """A profile that to_json() wrote."""
        values = json.loads(text)
        blocks = [
            BlockInfo(
                **{
                    **block,
                    "storages": [StorageInfo(**s) for s in block["storages"]],
                    "phases": [PhaseInfo(**p) for p in block.get("phases", ())],
                    "shared": [SharedRead(**r) for r in block.get("shared", ())],
                    "selective": [SelectiveStorage(**s) for s in block.get("selective", ())],
                }
            )
            for block in values.pop("blocks")
        ]
        signature = tuple((tuple(shape), dtype) for shape, dtype in values.pop("signature"))
        slowdowns = [CopySlowdown(**s) for s in values.pop("copy_slowdowns", ())]
        return Profile(blocks=blocks, signature=signature, copy_slowdowns=slowdowns, **values)

    def scaled(self, signature: Signature) -> Profile:
        """An upper estimate for other input shapes: dimensions that grew grow in every storage.

        Which dimension of a storage is a length and which a width cannot be told when they are
        equal: so what grew is taken to grow everywhere and what shrank nowhere, and the budget
        holds. The first step of the new shape measures what was estimated.
        """
        exchange = _exchanged_dimensions(self.signature, signature)
        old_numel = max((math.prod(shape) for shape, _ in self.signature), default=1)
        new_numel = max((math.prod(shape) for shape, _ in signature), default=1)
        ratio = new_numel / max(old_numel, 1)
        blocks = []
        for block in self.blocks:
            storages = []
            most = 1.0
            for storage in block.storages:
                shape = [exchange.get(size, size) for size in storage.shape]
                factor = math.prod(shape) / max(math.prod(storage.shape), 1)
                most = max(most, factor)
                nbytes = max(1, round(storage.nbytes * factor))
                storages.append(dataclasses.replace(storage, nbytes=nbytes, shape=shape))
            blocks.append(
                dataclasses.replace(
                    block,
                    storages=storages,
                    selective=[_scaled_output(s, exchange, ratio) for s in block.selective],
                    selective_base_s=block.selective_base_s * ratio,
                    forward_s=block.forward_s * ratio,
                    backward_s=block.backward_s * ratio,
                    transient_bytes=round(block.transient_bytes * most),
                    rerun_bytes=round(block.rerun_bytes * most),
                    rerun_working_bytes=round(block.rerun_working_bytes * most),
                    phases=[
                        PhaseInfo(
                            phase.reads,
                            round(phase.in_use_bytes * most),
                            round(phase.working_bytes * most),
                        )
                        for phase in block.phases
                    ],
                    shared=[
                        dataclasses.replace(read, nbytes=round(read.nbytes * most))
                        for read in block.shared
                    ],
                )
            )
        return dataclasses.replace(self, blocks=blocks, signature=signature, exact=False)

    def summary(self, link_bytes_per_second: float = 0.0) -> str:
        """The table by lifetime, the bill of memory, and the verdict.

        Args:
            link_bytes_per_second: when given, a column with the time to move each block's bytes.
        """
        return _summary(self, link_bytes_per_second)


def _scaled_output(
    storage: SelectiveStorage, exchange: Mapping[int, int], ratio: float
) -> SelectiveStorage:
    shape = [exchange.get(size, size) for size in storage.shape]
    factor = math.prod(shape) / max(math.prod(storage.shape), 1)
    nbytes = round(storage.nbytes * factor)
    return dataclasses.replace(
        storage, nbytes=nbytes, shape=shape, recompute_s=storage.recompute_s * ratio
    )


def _exchanged_dimensions(old: Signature, new: Signature) -> dict[int, int]:
    exchange: dict[int, int] = {}
    for (old_shape, _), (new_shape, _) in zip(old, new, strict=False):
        if len(old_shape) != len(new_shape):
            continue
        for before, after in zip(old_shape, new_shape, strict=True):
            if after > before > 1:
                exchange[before] = max(after, exchange.get(before, 0))
        flat_before, flat_after = math.prod(old_shape), math.prod(new_shape)
        if flat_after > flat_before > 1:
            exchange.setdefault(flat_before, flat_after)
    return exchange


def signature_of(args: Any, kwargs: Any) -> Signature:
    """Shapes and dtypes of the tensors among a forward's arguments."""
    return tuple(
        (tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for leaf in _pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor)
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.2f} MiB"


def _shapes(shapes: Iterable[list[int]]) -> str:
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "-"


def _summary(profile: Profile, bytes_per_second: float) -> str:
    header = (
        f"{'block':<26} {'in':<18} {'out':<18} {'dtype':<9} {'bytes':>14} {'produced':>8} "
        f"{'consumed':>8} {'split':>5} {'recompute ms':>12} {'transfer ms':>11}"
    )
    lines = [header, "-" * len(header)]
    count = len(profile.blocks)
    for index, block in enumerate(profile.blocks):
        dtypes = {storage.dtype for storage in block.storages}
        transfer = f"{block.nbytes / bytes_per_second * 1e3:.3f}" if bytes_per_second else "-"
        recompute = "-" if block.keep_reason else f"{block.forward_s * 1e3:.3f}"
        lines.append(
            f"{block.name:<26} {_shapes(block.input_shapes):<18} {_shapes(block.output_shapes):<18}"
            f" {(dtypes.pop() if len(dtypes) == 1 else 'mixed' if dtypes else '-'):<9}"
            f" {_mib(block.nbytes):>14} {index:>8} {2 * count - 1 - index:>8}"
            f" {'yes' if block.splittable else 'no':>5} {recompute:>12} {transfer:>11}"
        )
    lines += [
        "",
        "Bill of memory",
        f"  weights            {_mib(profile.parameter_bytes):>16}",
        f"  gradients          {_mib(profile.gradient_bytes):>16}",
        f"  optimizer states   {_mib(profile.optimizer_bytes):>16}",
        f"  buffers            {_mib(profile.buffer_bytes):>16}",
        f"  activations (A)    {_mib(profile.activation_bytes):>16}",
        f"Verdict: {verdict(profile)}",
    ]
    lines += _selective_lines(profile)
    lines += _slowdown_lines(profile)
    kept = [f"{b.name}: {b.keep_reason}" for b in profile.blocks if b.keep_reason]
    if kept:
        lines += ["Never recomputed:", *(f"  {line}" for line in kept)]
    return "\n".join(lines)


def _selective_lines(profile: Profile) -> list[str]:
    able = [block for block in profile.blocks if block.selective]
    if not able:
        return []
    outputs = sum(s.nbytes + s.kept_bytes for block in able for s in block.selective)
    whole = sum(block.forward_s for block in able) * 1e3
    rest = sum(block.selective_base_s for block in able) * 1e3
    return [
        f"SELECTIVE: {len(able)} blocks of {_mib(sum(b.nbytes for b in able))} run again in "
        f"{rest:.3f} ms instead of {whole:.3f} with {_mib(outputs)} of operators' outputs saved."
    ]


def _slowdown_lines(profile: Profile) -> list[str]:
    if not profile.copy_slowdown_note:
        return []
    tiers = [
        f"{s.out:.0%} while frames go to {s.tier} memory and {s.back:.0%} while they come back"
        for s in profile.copy_slowdowns
    ]
    if not tiers:
        return [f"Compute beside copies: {profile.copy_slowdown_note}."]
    figures = "; by ".join(tiers)
    return [f"Compute takes longer by {figures} ({profile.copy_slowdown_note})."]


def verdict(profile: Profile) -> str:
    """Worth it, modest, or leave it off, with the thresholds that decided."""
    resident = max(profile.resident_bytes, 1)
    ratio = profile.activation_bytes / resident
    tokens = max((math.prod(shape) for shape, _ in profile.signature), default=0)
    both = f"A = {_mib(profile.activation_bytes)}, P = {_mib(profile.resident_bytes)}"
    figures = f"{both}, A/P = {ratio:.2f}"
    if profile.parameters < _SMALL_PARAMETERS and tokens < _SMALL_TOKENS:
        return (
            f"small ({figures}): under {_SMALL_PARAMETERS:,} parameters and {_SMALL_TOKENS:,} "
            "tokens a plain run is usually right."
        )
    if ratio >= _WORTH:
        return f"worth it ({figures}, at least {_WORTH:g})."
    if ratio >= _MODEST:
        return f"modest ({figures}, between {_MODEST:g} and {_WORTH:g})."
    return (
        f"leave it off ({figures}, under {_MODEST:g}): weights fill the memory; ZeRO or LoRA first."
    )


def resident_bill(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> tuple[int, int, int, int]:
    """Bytes of weights, gradients, optimizer states and buffers; states are predicted by class
    where the optimizer has not taken its first step."""
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    trained_bytes = sum(_own_bytes(p) for p in trained)
    states = 0
    if optimizer is not None:
        real = sum(
            _own_bytes(value)
            for state in optimizer.state.values()
            if isinstance(state, Mapping)
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )
        states = real or trained_bytes * _states_per_weight(optimizer)
    weights = sum(_own_bytes(p) for p in parameters)
    return (
        weights,
        trained_bytes,
        states,
        sum(_own_bytes(b) for b in model.buffers()),
    )


def _own_bytes(tensor: torch.Tensor) -> int:
    """What this rank holds of it: of a DTensor its shard, which is what FSDP2 leaves here."""
    held: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return held.numel() * held.element_size()


def _states_per_weight(optimizer: torch.optim.Optimizer) -> int:
    name = type(optimizer).__name__
    if name.startswith(("Adam", "NAdam", "RAdam", "AdamW")):
        return 3 if optimizer.defaults.get("amsgrad") else 2
    if name == "SGD":
        return 1 if optimizer.defaults.get("momentum") else 0
    return 1
