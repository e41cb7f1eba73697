"""One save: from a snapshot in host memory to a committed checkpoint.

Every step is durable before the next one starts, and after each the ranks vote: either all of them
go on or all of them give up with the same sentence.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _checkpoint_files as files
from . import _checkpoint_tensors as tensors
from ._checkpoint_commit import Committer, Shard
from ._checkpoint_ranks import Ranks, as_named
from ._checkpoint_state import Snapshot, hash_of, job_of, to_bytes
from ._failpoints import failpoint
from ._progress import Progress, progress, tell
from .errors import FailedPrecondition, HyperFramesError

SCHEMA = 1


def rank_file(rank: int, suffix: str) -> str:
    """``rank-00000.json``: the manifest of what that rank has written."""
    return f"rank-{rank:05d}.{suffix}"


@dataclass
class Saver:
    """Writes checkpoints of one directory. One save at a time, on whichever thread."""

    directory: Path
    ranks: Ranks
    committer: Committer
    keep: int
    topology: dict[str, Any]
    environment: dict[str, Any]
    resumed: bool = False  # What the directory holds is this run's, or was looked at by it.
    compared: bool = False  # Ranks hold the same replicated tensors; looked at once.
    ids: dict[str, str] = field(default_factory=dict)  # Of the committed ones, by name.

    def run(self, snapshot: Snapshot | None, error: BaseException | None) -> None:
        """Collective. ``error``: why this rank has no snapshot.

        Raises the same error on every rank, naming the rank that failed first.
        """
        step = snapshot.counters.step if snapshot is not None else 0
        what = f"checkpoint {files.folder_name(step)}"
        with progress(what, watch=True, enabled=self.ranks.reports) as said:
            self.ranks.vote(error)
            assert snapshot is not None
            _Save(self, snapshot, said).run()


class _Save:
    def __init__(self, saver: Saver, snapshot: Snapshot, progress: Progress) -> None:
        self._saver = saver
        self._ranks = saver.ranks
        self._committer = saver.committer
        self._snapshot = snapshot
        self._progress = progress
        self._name = files.folder_name(snapshot.counters.step)
        self._partial: Path | None = None
        self._id = ""
        self._shards: list[Shard] = []
        self._shard = Shard(self._ranks.rank, 0, "", [])

    def run(self) -> None:
        try:
            self._compare_replicas()
            self._begin()
            self._write_tensors()
            self._write_rank()
            self._prepare()
            self._complete()
        except BaseException as error:
            self._give_up(error)
            raise

    def _agree(self, error: BaseException | None, value: Any = None) -> list[Any]:
        named = as_named(error, self._saver.directory) if error is not None else None
        return self._ranks.vote(named, value)

    def _compare_replicas(self) -> None:
        """What is written once for all ranks has to be the same on all of them."""
        saver = self._saver
        if saver.compared or self._ranks.size == 1:
            return
        mine = tensors.replica_digests(self._snapshot.tensors, self._snapshot.buffers)
        everyone: list[dict[str, str]] = self._agree(None, mine)
        for rank, theirs in enumerate(everyone[1:], 1):
            names = everyone[0].keys() & theirs.keys()
            wrong = sorted(n for n in names if everyone[0][n] != theirs[n])
            if wrong:
                raise FailedPrecondition(
                    f"Rank {rank} and rank 0 have other values of {wrong[0]} ({len(wrong)} tensors "
                    "differ), and one copy is written for all: train with "
                    "DistributedDataParallel or FSDP, or give each rank a directory of its own."
                )
        saver.compared = True

    def _begin(self) -> None:
        self._progress.phase("beginning")
        saver, step = self._saver, self._snapshot.counters.step
        error, chosen = None, ""
        failpoint("begin.before")
        try:
            if self._ranks.first and not saver.resumed:
                self._refuse_foreign()
                saver.resumed = True  # What is there from now on is this run's own.
            superframe, topology = self._snapshot.superframe, hash_of(saver.topology)
            chosen = self._committer.begin(self._name, step, superframe, topology)
            self._id = chosen  # To be aborted, should another rank have failed.
        except Exception as raised:
            error = raised
        failpoint("begin.after")
        self._id = str(self._agree(error, chosen)[0])
        partial = saver.directory / files.partial_name(step, self._id)
        try:
            if self._ranks.first:
                files.clean(saver.directory, under_way=partial.name)
                (partial / files.TENSORS).mkdir(parents=True)
            self._partial = partial
        except OSError as raised:
            error = raised
        failpoint("folder.made")
        self._agree(error)

    def _refuse_foreign(self) -> None:
        there = files.complete(self._saver.directory)
        if there:
            raise FailedPrecondition(
                f"{self._saver.directory} holds checkpoints of another run (the newest is "
                f"{there[0]}): call checkpoints.resume() before the loop, or give an empty "
                "directory."
            )

    def _write_tensors(self) -> None:
        self._progress.phase("writing tensors")
        assert self._partial is not None
        error = None
        try:
            folder = self._partial / files.TENSORS
            tensors.write(self._snapshot.tensors, folder, self._ranks)
            files.fsync_folder(folder)
        except BaseException as raised:
            error = raised
        self._agree(_own_error(error, self._ranks.rank))

    def _write_rank(self) -> None:
        self._progress.phase("writing this rank's state")
        error, digest, size = None, "", 0
        try:
            digest, size = self._write_rank_files()
        except Exception as raised:
            error = raised
        counters, rank = self._snapshot.counters, self._ranks.rank
        self._shard = Shard(rank, size, digest, list(counters.order_table))
        self._shards = self._agree(error, self._shard)

    def _write_rank_files(self) -> tuple[str, int]:
        """SHA-256 of the rank's manifest, bytes of the files in it."""
        assert self._partial is not None
        folder, rank, counters = self._partial, self._ranks.rank, self._snapshot.counters
        state = rank_file(rank, "state")
        files.write_durably(folder / state, to_bytes(self._snapshot.rank_state), "state")
        mine = [state, *(f"{files.TENSORS}/{name}" for name in self._own_tensor_files())]
        found = {name: files.digest_file(folder / name) for name in mine}
        manifest = {
            "schema": SCHEMA,
            "rank": rank,
            "step": counters.step,
            "superframe": self._snapshot.superframe,
            "micro_batches": counters.micro_batches,
            "order_table": counters.order_table,
            "files": found,
        }
        data = _json(manifest)
        files.write_durably(folder / rank_file(rank, "json"), data, "shard")
        return files.digest_of(data), sum(each["bytes"] for each in found.values())

    def _own_tensor_files(self) -> list[str]:
        """torch names data files by the rank that wrote them; rank 0 writes the metadata."""
        assert self._partial is not None
        mine = f"__{self._ranks.rank}_"
        return sorted(
            entry.name
            for entry in (self._partial / files.TENSORS).iterdir()
            if entry.name.startswith(mine) or (self._ranks.first and entry.name == ".metadata")
        )

    def _prepare(self) -> None:
        self._progress.phase("waiting for all ranks")
        error = None
        failpoint("prepare.before")
        try:
            self._committer.prepare(self._id, self._shard)
        except Exception as raised:
            error = raised
        failpoint("prepare.after")
        self._agree(error)

    def _complete(self) -> None:
        self._progress.phase("committing")
        error = None
        if self._ranks.first:
            try:
                self._publish_and_commit()
            except Exception as raised:
                error = raised
        self._agree(error)

    def _publish_and_commit(self) -> None:
        assert self._partial is not None
        saver = self._saver
        for shard in self._shards:
            path = self._partial / rank_file(shard.rank, "json")
            if not path.exists():
                raise FailedPrecondition(
                    f"What rank {shard.rank} has written is not visible to rank 0 in "
                    f"{saver.directory}: give a directory on a file system that all ranks share."
                )
        files.write_durably(self._partial / files.MANIFEST, _json(self._manifest()), "manifest")
        files.publish(self._partial, saver.directory / self._name)
        failpoint("commit.before")
        self._committer.commit(self._id)
        failpoint("commit.after")
        files.write_latest(saver.directory, self._name)
        saver.ids[self._name] = self._id
        try:
            self._retire_old()
            files.clean(saver.directory)
        except OSError as error:
            tell(f"old checkpoints in {saver.directory} could not be deleted: {error}")

    def _manifest(self) -> dict[str, Any]:
        saver, counters = self._saver, self._snapshot.counters
        return {
            "schema": SCHEMA,
            "id": self._id,
            "job": job_of(),
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "step": counters.step,
            "superframe": self._snapshot.superframe,
            "world_size": self._ranks.size,
            "topology": saver.topology,
            "topology_hash": hash_of(saver.topology),
            "environment": saver.environment,
            "plan": self._snapshot.plan,
            "ranks": [
                {
                    "rank": shard.rank,
                    "manifest": rank_file(shard.rank, "json"),
                    "sha256": shard.digest,
                    "bytes": shard.bytes,
                    "order_table": shard.micro_batches,
                }
                for shard in self._shards
            ],
        }

    def _retire_old(self) -> None:
        """Of those up to this step the newest ``keep`` stay; later ones are another history's."""
        saver, step = self._saver, self._snapshot.counters.step
        mine = [n for n in files.complete(saver.directory) if (files.step_of(n) or 0) <= step]
        for name in mine[saver.keep :]:
            failpoint("retire.before")
            known = saver.ids.get(name) or _id_in(saver.directory / name)
            if known and not self._committer.retire(known):
                continue
            saver.ids.pop(name, None)
            failpoint("retire.after")
            files.remove(saver.directory / name)

    def _give_up(self, error: BaseException) -> None:
        """Nothing of this save stays; what was committed before is as it was."""
        if self._id:
            self._committer.abort(self._id, str(as_named(error)))
        if self._ranks.first and self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)


def _own_error(error: BaseException | None, rank: int) -> BaseException | None:
    """torch reports all ranks' failures to all ranks: the vote is to name the rank that failed.

    A rank that only heard of it votes for nothing, so that the other's own words win.
    """
    failures = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return error
    if rank in failures:
        failure: BaseException | tuple[BaseException, Any] = failures[rank]
        return failure[0] if isinstance(failure, tuple) else failure
    return None


def _id_in(folder: Path) -> str:
    try:
        return str(files.read_json(folder / files.MANIFEST).get("id", ""))
    except HyperFramesError:
        return ""


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
