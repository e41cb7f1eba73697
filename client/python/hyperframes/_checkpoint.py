"""``hf.checkpoint``: frame-aligned checkpoints of a training loop, and exact resume."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from . import _checkpoint_files as files
from . import _checkpoint_state as state
from ._checkpoint_commit import Committer, CoordinatorCommitter, FileCommitter
from ._checkpoint_ranks import Flags, Ranks, SaveSkipped
from ._checkpoint_resume import Target, resume
from ._checkpoint_save import Saver
from ._checkpoint_steps import StepWatch
from ._checkpoint_stop import StopSignal
from ._checkpoint_tensors import HostCopies, state_of
from ._config import cluster
from ._failpoints import failpoint
from ._progress import progress, tell
from .client import Client
from .errors import FailedPrecondition, InvalidArgument


class Checkpoints:
    """Saves where a superframe ends, and continues a stopped run bit for bit.

    ::

        with hf.checkpoint(directory, model=model, optimizer=optimizer, every=50) as checkpoints:
            for step in range(checkpoints.resume(), steps):
                ...                      # forward, backward (any number of micro-batches)
                optimizer.step()
                if checkpoints.step():   # True: asked to stop, and saved
                    break

    Model parameters, optimizer state, random-number states, the loader's position and what is in
    ``extra`` come back exactly. Gradients are not saved: a save waits until they are applied.

    Args:
        directory: of this training's checkpoints, and of no other's; shared by all ranks.
        model: as it is trained; DDP, FSDP2 and HyperFrames contexts around it do not matter.
        optimizer: one or several. The first one's steps are counted.
        loader: an object with state_dict() and load_state_dict(), such as torchdata's
            StatefulDataLoader; each rank's own.
        extra: further such objects by name (schedulers, a GradScaler), and torch.Generators.
        every: optimizer steps between two saves; 0: only save() and a stop save.
        keep: how many committed checkpoints stay.
        save_on_stop: SIGTERM makes all ranks save at the same step; then step() returns True.
        asynchronous: training waits only while the state is copied to host memory.
        timeout_s: of one exchange between ranks while saving.

    Raises:
        InvalidArgument: a value that cannot be meant, an object that cannot be saved.
        FailedPrecondition: another training uses the directory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        loader: Any = None,
        extra: Mapping[str, Any] | None = None,
        every: int = 50,
        keep: int = 3,
        save_on_stop: bool = True,
        asynchronous: bool = True,
        timeout_s: float = 600.0,
        _committer: Committer | None = None,
    ) -> None:
        if every < 0:
            raise InvalidArgument(f"every={every}: optimizer steps between two saves, or 0.")
        if keep < 1:
            raise InvalidArgument(f"keep={keep}: at least 1 checkpoint has to stay.")
        several = tuple(optimizer) if isinstance(optimizer, Iterable) else (optimizer,)
        self._optimizers: tuple[torch.optim.Optimizer, ...] = several
        if not self._optimizers:
            raise InvalidArgument("optimizer is empty: give at least one.")
        if loader is not None:
            state.check_stateful(loader, "loader")
        for name, each in (extra or {}).items():
            state.check_stateful(each, f"extra[{name!r}]")
        self._directory = Path(os.path.abspath(directory))
        self._model = model
        self._loader = loader
        self._extra = dict(extra or {})
        self._every = every
        self._keep = keep
        self._asynchronous = asynchronous
        self._timeout_s = timeout_s
        self._given = _committer
        self._watch = StepWatch(model, self._optimizers)
        self._copies = HostCopies()
        self._signal = StopSignal(enabled=save_on_stop)
        self._open = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None  # Of the background save; not raised yet.
        self._counts = {"saved": 0, "skipped": 0, "failed": 0, "waits": 0}
        self._blocked_s = self._write_s = 0.0
        self._seen_step = 0  # Of the last step() that ended a superframe.
        self._started_step = -1  # Of the newest save.
        self._due = False
        self._stopping = self._stopped = False

    # ---- Context ----

    def __enter__(self) -> Checkpoints:
        if self._open:
            raise FailedPrecondition("This context is entered already.")
        self._ranks = Ranks(self._timeout_s)
        self._flag_ranks = Ranks(self._timeout_s)
        self._flags = Flags(self._flag_ranks)
        self._lock = files.DirectoryLock(self._directory)
        try:
            self._take_directory()
            self._committer = self._given or self._make_committer()
            self._watch.install()
        except BaseException:
            self._watch.remove()
            self._lock.release()
            self._ranks.close()
            self._flag_ranks.close()
            raise
        self._saver = Saver(
            self._directory,
            self._ranks,
            self._committer,
            self._keep,
            state.topology_of(self._model, self._optimizers, self._ranks.size),
            state.environment_of(self._model),
        )
        self._signal.install()
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._join()
            if kind is None:
                self._flags.finish()
                self._raise_error()
        finally:
            self._flags.forget()
            self._open = False
            self._signal.restore()
            self._watch.remove()
            self._committer.close()
            self._lock.release()
            if self._error is not None:
                tell(f"the last checkpoint was not taken: {self._error}")
            self._ranks.close()
            self._flag_ranks.close()

    def _take_directory(self) -> None:
        error: BaseException | None = None
        try:
            if not self._directory.is_dir():
                self._directory.mkdir(parents=True, exist_ok=True)
                files.fsync_folder(self._directory.parent)
            if self._ranks.first:
                self._lock.acquire()
        except Exception as raised:
            error = raised
        self._ranks.vote(error)

    def _make_committer(self) -> Committer:
        found = cluster()
        if found is None:
            return FileCommitter()
        if found.world_size != self._ranks.size:
            raise FailedPrecondition(
                f"The job has {found.world_size} ranks, but torch.distributed connects "
                f"{self._ranks.size}: call torch.distributed.init_process_group() before "
                "hf.checkpoint."
            )
        client = Client(found.address)
        return CoordinatorCommitter(
            client.call, found, self._directory, self._ranks, close=client.close
        )

    # ---- What the loop calls ----

    def resume(self, *, strict: bool = True) -> int:
        """Restores the newest whole checkpoint; the optimizer steps that are applied then, or 0.

        Collective; once, before the first step. Every file is checked against its digest first.

        Args:
            strict: False: also with another number of ranks or another topology; tensors are
                loaded, and what is not exact is printed.

        Raises:
            DataLoss: there are checkpoints, but none is whole.
            FailedPrecondition: other world size, topology or model than when it was saved.
        """
        self._check_open()
        if self._watch.counters.micro_batches or self._watch.counters.step:
            raise FailedPrecondition("resume() comes before the first training step.")
        target = Target(
            self._model, self._optimizers, self._loader, self._extra,
            self._saver.topology, self._saver.environment,
        )  # fmt: skip
        with self._watch.muted():
            found = resume(self._directory, self._ranks, self._committer, target, strict=strict)
        self._saver.resumed = True
        if found is not None:
            self._watch.counters = found
            self._seen_step = self._started_step = found.step
        return self._watch.counters.step

    def step(self) -> bool:
        """To be called at the end of the loop's body, after every micro-batch or every step.

        Saves when a save is due and gradients are applied; otherwise the save waits for that.

        Returns:
            True: the program was asked to stop and has saved. Leave the loop.

        Raises:
            Whatever a background save failed with, on every rank at the same step, naming the rank
            that failed. Training can go on; the next save that is due tries again.
        """
        self._check_open()
        step = self._watch.counters.step
        if step != self._seen_step:
            due = bool(self._every) and step // self._every > self._seen_step // self._every
            self._due = self._due or due
            self._seen_step = step
            stop, failed = self._flags.exchange(self._signal.requested, self._has_failed())
            self._stopping = self._stopping or stop
            if failed:
                self._join()
                self._raise_error_everywhere()
        if (self._due or self._stopping) and not self._stopped and not self._watch.why_not_now():
            self._due = False
            self._save()
            if self._stopping:
                self.wait()
                self._stopped = True
        return self._stopped

    def save(self) -> None:
        """Starts a save now; all ranks call it. wait() waits until it is committed.

        Raises:
            FailedPrecondition: this is no superframe end, and why.
        """
        self._check_open()
        reason = self._watch.why_not_now()
        if reason:
            raise FailedPrecondition(f"No checkpoint can be taken here: {reason}.")
        self._save()

    def wait(self) -> None:
        """Until the save under way is committed; raises what it failed with. All ranks call it."""
        self._check_open()
        self._join()
        self._raise_error()

    def request_stop(self) -> None:
        """As SIGTERM would: all ranks save at the same step, and step() returns True."""
        self._signal.requested = True

    @property
    def stop_requested(self) -> bool:
        """All ranks have agreed to save and stop."""
        return self._stopping

    @property
    def micro_batches(self) -> int:
        """Training forwards of this rank since the training's first start: the data cursor."""
        return self._watch.counters.micro_batches

    @property
    def order_table(self) -> list[int]:
        """Ids of the micro-batches of the superframe that ended last, as they ran."""
        return list(self._watch.counters.order_table)

    def stats(self) -> dict[str, float]:
        """Counts of saved, skipped, failed, and of waits for a save that was still under way;
        seconds: blocked_s, for which training stood still, and write_s, in the background.
        """
        return {**self._counts, "blocked_s": self._blocked_s, "write_s": self._write_s}

    # ---- Saving ----

    def _save(self) -> None:
        """Collective. Blocks until the state is in host memory; the rest is in the background."""
        step = self._watch.counters.step
        if step == self._started_step:
            return  # Taken or under way: the same step has the same state.
        started = time.perf_counter()
        what = files.folder_name(step)
        with progress(what, watch=True, enabled=self._ranks.reports) as said:
            said.phase("waiting for the save before it")
            if self._thread is not None and self._thread.is_alive():
                self._counts["waits"] += 1
            self._join()
            self._raise_error_everywhere()
            self._started_step = step
            said.phase("copying to host memory")
            error, snapshot = None, None
            failpoint("capture.before")
            try:
                snapshot = self._capture()
            except Exception as raised:
                error = raised
            failpoint("capture.after")
        self._blocked_s += time.perf_counter() - started
        if self._asynchronous:
            self._thread = threading.Thread(
                target=self._write, args=(snapshot, error), name="hyperframes-checkpoint",
                daemon=True,
            )  # fmt: skip
            self._thread.start()
        else:
            self._write(snapshot, error)
            self._raise_error()

    def _capture(self) -> state.Snapshot:
        counters = self._watch.counters
        with self._watch.muted():
            tensors = self._copies.copy(state_of(self._model, self._optimizers))
        return state.Snapshot(
            counters=state.Counters(
                counters.step, counters.micro_batches, list(counters.order_table)
            ),
            superframe=counters.step,
            tensors=tensors,
            rank_state=state.rank_state(self._model, self._loader, self._extra),
            plan=state.plan_of(self._model),
            buffers=state.buffer_names(self._model),
        )

    def _write(self, snapshot: state.Snapshot | None, error: BaseException | None) -> None:
        started = time.perf_counter()
        try:
            self._saver.run(snapshot, error)
            self._counts["saved"] += 1
        except SaveSkipped as skipped:
            self._counts["skipped"] += 1
            if self._ranks.first:
                tell(f"no checkpoint was taken: {skipped}")
        except BaseException as failed:
            self._counts["failed"] += 1
            self._error = failed
        finally:
            self._write_s += time.perf_counter() - started

    def _has_failed(self) -> bool:
        return self._error is not None and not (self._thread and self._thread.is_alive())

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _raise_error_everywhere(self) -> None:
        """Collective: a rank whose own save looked fine raises with the others."""
        error, self._error = self._error, None
        try:
            self._flag_ranks.vote(error)
        except BaseException:
            self._started_step = -1
            raise

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._started_step = -1
            raise error

    def _check_open(self) -> None:
        if not self._open:
            raise FailedPrecondition("Enter hf.checkpoint first: with hf.checkpoint(...) as c.")
