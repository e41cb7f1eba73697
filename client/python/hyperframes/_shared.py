"""What one block saves and others read again: whether it moves, and where a plan counts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set

from ._blocks import REST, Record
from ._phases import Key, SharedUse
from .profile import BlockInfo, PhaseInfo, Profile, SharedRead

UNKNOWN_READER = "read outside the blocks, nobody knows when"
READ_AGAIN = "read again by other blocks"
HELD = "the model's own code holds it to the end of its forward"


def held_by_model(living: Iterable[Record], block: str, given: Set[int]) -> set[Key]:
    """Other blocks' storages that are alive when ``block`` has run, though no graph of theirs is.

    Args:
        living: of the forward so far.
        given: ids of the records of its arguments: its caller may let go of them as it returns.
    """
    return {
        (record.block, record.ordinal)
        for record in living
        if record.block not in (block, REST) and id(record) not in given
    }


def note_held(blocks: Mapping[str, BlockInfo], held: Set[Key]) -> None:
    """What the model's own code holds to the end of its forward stays: to move it frees nothing
    before backward begins, and then most of all is needed first.

    Args:
        blocks: by name.
        held: storages that are alive when the last block has run.
    """
    for name, ordinal in held:
        for storage in blocks[name].storages if name in blocks else ():
            if storage.ordinal == ordinal and not storage.unmovable_reason:
                storage.unmovable_reason = HELD


def note_shared(blocks: Sequence[BlockInfo], uses: Mapping[str, Mapping[Key, SharedUse]]) -> None:
    """Writes down in every block which shared storages its backward reads when.

    Those that were saved outside every block are left out: plans count them during all of backward
    once they are moved.

    Args:
        blocks: in order of execution.
        uses: by block, of its own storages and of others'.
    """
    known = {
        (block.name, storage.ordinal): storage
        for block in blocks
        if block.name != REST
        for storage in block.storages
    }
    readers: dict[Key, list[BlockInfo]] = {}
    for block in blocks:
        for key, use in uses.get(block.name, {}).items():
            by_backward = use.handles or not block.keep_reason
            if key in known and key[0] != block.name and by_backward:
                readers.setdefault(key, []).append(block)
    for key, found in readers.items():
        if any(not block.phases for block in found) and not known[key].unmovable_reason:
            known[key].unmovable_reason = UNKNOWN_READER
    for block in blocks:
        block.shared = [
            SharedRead(*key, use.nbytes, use.phases(len(block.phases)))
            for key, use in sorted(uses.get(block.name, {}).items())
            if any(reader is block for reader in readers.get(key, ()))
            or (key[0] == block.name and key in readers)
        ]


def readers_of_shared(profile: Profile) -> dict[Key, int]:
    """How many blocks beside its own read each shared storage that may move."""
    fixed = _unmovable(profile)
    count: dict[Key, int] = {}
    for block in profile.blocks:
        for read in block.shared:
            key = read.block, read.ordinal
            if read.block != block.name and key not in fixed:
                count[key] = count.get(key, 0) + 1
    return count


def _unmovable(profile: Profile) -> set[Key]:
    return {
        (block.name, storage.ordinal)
        for block in profile.blocks
        for storage in block.storages
        if storage.unmovable_reason or storage.unstable
    }


def as_planned(profile: Profile, *, keep_from: int, recompute: bool) -> list[BlockInfo]:
    """The blocks as a planner gets them, who knows of no storage that two blocks read.

    Args:
        keep_from: storages with so many readers beside their block stay and count where they are;
            0: all may move, and count in every backward that reads them.
        recompute: blocks may run again. What others read of theirs waits nevertheless.
    """
    count = readers_of_shared(profile)
    stays = {key for key, readers in count.items() if 0 < keep_from <= readers}
    stays |= _unmovable(profile)
    blocks = []
    for block in profile.blocks:
        waits = {read.ordinal for read in block.shared if read.block == block.name}
        waits |= {s.ordinal for s in block.storages if s.unmovable_reason == HELD}
        if not recompute or block.keep_reason:
            waits = set()
        storages = [
            dataclasses.replace(
                storage,
                is_input=storage.is_input or storage.ordinal in waits,
                unmovable_reason=storage.unmovable_reason
                or (READ_AGAIN if (block.name, storage.ordinal) in stays else ""),
            )
            for storage in block.storages
        ]
        # Run again, it reads what others saved for it before all else.
        given = sum(
            read.nbytes
            for read in block.shared
            if read.block != block.name and (read.block, read.ordinal) not in stays
        )
        blocks.append(
            dataclasses.replace(
                block,
                storages=storages,
                phases=_with_shared(block, waits, stays),
                rerun_bytes=block.rerun_bytes and block.rerun_bytes + given,
                rerun_working_bytes=block.rerun_working_bytes and block.rerun_working_bytes + given,
            )
        )
    return blocks


def _with_shared(block: BlockInfo, waits: set[int], stays: set[Key]) -> list[PhaseInfo]:
    inputs = {storage.ordinal for storage in block.storages if storage.is_input}
    phases = []
    for index, phase in enumerate(block.phases):
        more = 0
        for read in block.shared:
            if index not in read.phases:
                continue
            if read.block != block.name:
                unmovable = (read.block, read.ordinal) in stays
                more += 0 if unmovable else read.nbytes
            elif read.ordinal in waits - inputs:
                more -= read.nbytes  # Inputs are there anyway, so phases do not count them.
        in_use = max(0, phase.in_use_bytes + more)
        phases.append(PhaseInfo(phase.reads, in_use, max(in_use, phase.working_bytes + more)))
    return phases
