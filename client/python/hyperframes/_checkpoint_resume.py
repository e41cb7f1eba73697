"""Finds the newest checkpoint that is whole, and puts the training back to where it was.

Rank 0 chooses, all ranks check what was written before anything is loaded; a damaged checkpoint is
named and the next older one is tried. Never a silent start from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from . import _checkpoint_files as files
from . import _checkpoint_state as state
from . import _checkpoint_tensors as tensors
from ._checkpoint_commit import Committer, missing
from ._checkpoint_ranks import Ranks
from ._checkpoint_save import SCHEMA, rank_file
from ._progress import Progress, progress, tell
from .errors import DataLoss, FailedPrecondition, HyperFramesError


@dataclass
class Target:
    """What is restored."""

    model: nn.Module
    optimizers: tensors.Optimizers
    loader: Any
    extra: Mapping[str, Any]
    topology: dict[str, Any]
    environment: dict[str, Any]


@dataclass
class _Found:
    name: str
    manifest: dict[str, Any]


def resume(
    directory: Path, ranks: Ranks, committer: Committer, target: Target, *, strict: bool
) -> state.Counters | None:
    """Collective. None: there is nothing to resume from.

    Raises on every rank:
        DataLoss: there are checkpoints, and none of them is whole; names each with its damage.
        FailedPrecondition: saved with another world size or topology (unless not ``strict``), or
            of another model.
    """
    with progress(f"resuming from {directory}", watch=True, enabled=ranks.reports) as said:
        said.phase("looking")
        found = _choose(directory, ranks, committer, said)
        if found is None:
            return None
        differences = _compare(found, target, strict, ranks)
        said.phase(f"loading {found.name}")
        return _load(directory / found.name, found, ranks, target, differences)


def _choose(directory: Path, ranks: Ranks, committer: Committer, said: Progress) -> _Found | None:
    error, names = None, []
    if ranks.first:
        try:
            names = _candidates(directory, committer)
        except Exception as raised:
            error = raised
    names = ranks.vote(error, names)[0]
    damage = []
    for name in names:
        said.phase(f"checking {name}")
        try:
            found = _verified(directory / name, ranks)
        except DataLoss as damaged:
            damage.append(f"{name}: {damaged}")
            if ranks.first:
                tell(f"{name} is passed over: {damaged}")
            continue
        if ranks.first and damage:
            tell(f"resuming from {name} instead")
        return found
    if damage:
        raise DataLoss(
            f"No checkpoint in {directory} is whole. {' '.join(damage)[:1500]} To begin anew, give "
            "another directory."
        )
    return None


def _candidates(directory: Path, committer: Committer) -> list[str]:
    """Names, the one to try first at the front."""
    there = files.complete(directory)
    latest, why = files.read_latest(directory)
    committed = committer.committed()
    if committed:
        order = [name for name in committed if name in there]
        if not order:
            raise missing(committed, directory)
    else:
        if committed is not None and there:
            tell(f"the coordinator knows of no checkpoint in {directory}: its files decide")
        if latest is None and there:
            tell(f"{why}: the newest complete checkpoint, {there[0]}, is tried first")
        order = [latest] if latest is not None else []
    return order + [name for name in there if name not in order]


def _verified(folder: Path, ranks: Ranks) -> _Found:
    """Every file against its digest, shared out over the ranks. DataLoss names the file."""
    error, manifest = None, {}
    if ranks.first:
        try:
            manifest = files.read_json(folder / files.MANIFEST)
            _check_manifest(folder, manifest)
        except HyperFramesError as raised:
            error = raised
    manifest = ranks.vote(error, manifest)[0]
    try:
        _check_files(folder, manifest, ranks)
    except HyperFramesError as raised:
        error = raised
    ranks.vote(error)
    return _Found(folder.name, manifest)


def _check_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    path = folder / files.MANIFEST
    if manifest.get("schema") != SCHEMA:
        raise FailedPrecondition(
            f"{path} has schema {manifest.get('schema')!r}, this version reads {SCHEMA}: resume "
            "with the version that wrote it."
        )
    if not isinstance(manifest.get("ranks"), list) or "topology" not in manifest:
        raise DataLoss(f"{path} is damaged: it lacks ranks or topology.")
    if manifest.get("step") != files.step_of(folder.name):
        raise DataLoss(f"{path} is of step {manifest.get('step')}, not of {folder.name}.")


def _check_files(folder: Path, manifest: dict[str, Any], ranks: Ranks) -> None:
    """This rank's share: its own files; with fewer ranks than then, also some of the others'."""
    for entry in manifest["ranks"]:
        if entry["rank"] % ranks.size != ranks.rank:
            continue
        shard = files.read_json(folder / entry["manifest"], entry["sha256"])
        for name, expected in shard["files"].items():
            files.check_file(folder / name, expected)


def _compare(found: _Found, target: Target, strict: bool, ranks: Ranks) -> list[str]:
    """What is not as it was when it was saved. FailedPrecondition: something, and ``strict``."""
    then, now = found.manifest["topology"], target.topology
    keys = sorted(then.keys() | now.keys())
    differences = [
        f"{key} was {then.get(key)}, is {now.get(key)}" for key in keys
        if then.get(key) != now.get(key)
    ]  # fmt: skip
    if differences and strict:
        raise FailedPrecondition(
            f"{found.name} was saved under other conditions: {'; '.join(differences)}. Start under "
            "the same ones for an exact continuation, or call resume(strict=False): it loads the "
            "tensors and says what is not exact."
        )
    before, here = found.manifest.get("environment", {}), target.environment
    changed = [f"{k} {before.get(k)} -> {here.get(k)}" for k in here if before.get(k) != here[k]]
    if changed and ranks.first:
        tell(f"the state is restored exactly, but later bits may differ: {', '.join(changed)}")
    return differences


def _load(
    folder: Path, found: _Found, ranks: Ranks, target: Target, differences: list[str]
) -> state.Counters:
    error, counters = None, state.Counters()
    exact = not differences
    try:
        tensors.read(target.model, target.optimizers, folder / files.TENSORS, ranks)
        known = ranks.rank < found.manifest["world_size"]
        whose = ranks.rank if known else 0
        counters = _load_rank(folder, whose, target, exact=exact, first=ranks.first)
    except Exception as raised:
        error = raised
    ranks.vote(error)
    if differences and ranks.first:
        tell(
            f"{found.name} is continued, but not exactly: {'; '.join(differences)}. Random numbers "
            "and the loader's position start anew"
        )
    return counters


def _load_rank(
    folder: Path, rank: int, target: Target, *, exact: bool, first: bool
) -> state.Counters:
    shard = files.read_json(folder / rank_file(rank, "json"))
    saved = state.from_file(folder / rank_file(rank, "state"))
    state.restore_buffers(saved, target.model)
    lacking = state.restore_objects(saved, target.loader, target.extra, exact=exact)
    if lacking and first:
        tell(f"{folder.name}: not restored, for only one side has it: {', '.join(lacking)}")
    if exact:
        state.restore_random(saved)
    return state.Counters(
        step=int(shard["step"]),
        micro_batches=int(shard["micro_batches"]),
        order_table=[int(each) for each in shard["order_table"]],
    )
