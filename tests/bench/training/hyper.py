"""Modes of HyperFrames: budgets from a measured peak, and engines that outlast a turn."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import hyperframes as hf
from hyperframes import _backend as backends
from hyperframes import _config
from hyperframes._engine import Backend, Engine

from .workload import Workload

# What forbids everything that runs a forward again, in the words that this release knows.
NOTHING_AGAIN = tuple(w for w in ("recompute", "selective") if w in _config._FORBIDDABLE)


class _Kept:
    """An engine that close() leaves open."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        self._engine.quiesce()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        setattr(self, name, found)  # A step calls the engine thousands of times.
        return found


class KeepingBackend:
    """Leases in host memory stay pinned from one turn of a mode to its next: pinning takes half a
    second and more per GiB, and a training pays it once. Leases on peers are given back."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._key: Any = None
        self._engine: Engine | None = None
        self.moved_before: dict[str, int] = {}  # Bytes out by tier, before this turn.
        self.gpu = backend.gpu
        self.plans_once = backend.plans_once
        self.describe = backend.describe
        self.plan = backend.plan

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Engine:
        leases = plan.get("leases", ())
        self.moved_before = {}
        if not any(lease["device"].startswith("host:") for lease in leases):
            return self._backend.open_engine(plan, options)
        limits = (plan.get("stash_limit", 0), plan.get("prefetch_limit", 0))
        key = repr((leases, limits, sorted(options.items(), key=str)))
        if self._engine is None or key != self._key:
            self.let_go()
            self._engine, self._key = self._backend.open_engine(plan, options), key
        self.moved_before = dict(self._engine.stats().get("bytes_out", {}))
        kept: Any = _Kept(self._engine)
        return kept  # type: ignore[no-any-return]

    def let_go(self) -> None:
        """Closes what is kept."""
        engine, self._engine, self._key = self._engine, None, None
        if engine is not None:
            with contextlib.suppress(hf.HyperFramesError):  # After a step that failed.
                engine.quiesce()
            engine.close()

    def close(self) -> None:
        self.let_go()
        self._backend.close()


class HyperMode:
    """One HyperFrames mode at one length.

    Args:
        profile: of the workload as this mode runs it (compiled or not).
        forbid: as hf.hyperframes takes it.
        limit: bytes that the measured peak may reach; the budget is found so that it does not.
        backend: made for each mode; None: the default.
    """

    def __init__(
        self,
        workload: Workload,
        profile: hf.Profile,
        *,
        forbid: Sequence[str],
        limit: int | None = None,
        activation_budget: int | None = None,
        host_budget: int | None = None,
        backend: Callable[[torch.device], Backend] = backends.make_backend,
    ) -> None:
        self._workload = workload
        self._profile = profile
        self._forbid = tuple(forbid)
        self.limit = limit
        self.budget = limit
        self._activation_budget = activation_budget
        self._host_budget = host_budget
        device = next(workload.model.parameters()).device
        self._backend = KeepingBackend(backend(device))
        self.session: hf.Session | None = None

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The model trains under HyperFrames meanwhile."""
        sizes: dict[str, Any] = {"budget": self.budget}
        if self._activation_budget is not None:
            sizes = {"activation_budget": self._activation_budget}
        self.session = hf.hyperframes(
            self._workload.model, profile=self._profile, forbid=self._forbid,
            host_budget=self._host_budget, _backend=self._backend, **sizes,
        )  # fmt: skip
        with self.session:
            yield

    def fit(self, peak_of: Callable[[], int], tries: int) -> None:
        """Finds the budget whose measured peak is at the limit, or just below it. ``peak_of``
        runs warm steps inside entered() and returns their peak."""
        if self.limit is None or self._activation_budget is not None:
            return
        good: int | None = None
        least = 0
        for attempt in range(max(1, tries) + 1):
            try:
                with self.entered():
                    peak = peak_of()
            except hf.ResourceExhausted as error:
                print(f"    budget {self.budget} is refused: {str(error)[:300]}", flush=True)
                least = least_budget(str(error)) or 0
                if not least or good is not None:
                    break
                self.budget = least
                continue
            assert self.budget is not None
            room = self.limit - peak
            print(
                f"    budget {self.budget / 1e9:.3f} GB: peak {peak / 1e9:.3f} GB,"
                f" {room / 1e9:+.3f} GB from the limit",
                flush=True,
            )
            if room >= 0:
                good = max(self.budget, good or 0)
            if room >= 0 and (room < 0.005 * self.limit or attempt + 1 >= tries):
                break
            if room < 0 and self.budget <= least:
                break  # Nothing smaller works: the row shows by how much it is over.
            self.budget = max(least, self.budget + int(room * (0.95 if room >= 0 else 1.1)))
        if good is not None:
            self.budget = good

    def figures(self) -> dict[str, Any]:
        """What the last turn moved and recomputed per step, for the row."""
        if self.session is None:
            return {}
        stats = self.session.stats()
        plan = self.session.plan
        engine = stats.get("engine", {})
        before = self._backend.moved_before

        def moved(tier: str) -> int:
            total = int(engine.get("bytes_out", {}).get(tier, 0)) - int(before.get(tier, 0))
            return total // max(1, int(stats["steps"]))

        return {
            "budget_bytes": self.budget,
            "activation_bytes": self._profile.activation_bytes,
            "peer_bytes": moved("peer"),
            "host_bytes": moved("host"),
            "recomputed_bytes": stats.get("recomputed_bytes"),
            "policies": dict(Counter(plan.policies.values())) if plan else {},
            "copy_limits": plan.copy_limits if plan else None,
            "kept_because": dict(Counter(b.keep_reason for b in self._profile.blocks)),
            "predicted_step_s": plan.predicted_step_s if plan else None,
            "predicted_peak_bytes": plan.predicted_peak if plan else None,
            "copy_slowdown": stats.get("copy_slowdown"),
            "prefetch_misses": engine.get("prefetch_misses"),
            "overflow": [engine.get("overflow_to_host"), engine.get("overflow_to_keep")],
            "unplanned_storages": stats.get("unplanned_storages"),
        }

    def close(self) -> None:
        """Gives all leases back."""
        self.session = None
        self._backend.close()


def least_budget(message: str) -> int | None:
    """Bytes of the smallest budget that works, from the refusal's sentence."""
    _, found, rest = message.partition("budget that works is")
    if not found or "(" not in rest:
        return None
    words = rest.split("(", 1)[1].split()
    return int(words[0]) if words and words[0].isdigit() else None
