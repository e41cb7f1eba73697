"""From a session that has run to the figures that are diagnosed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._engine import Backend
from ._figures import Figures, FrameFigures, LinkFigures, Stuck
from ._holders import holders
from ._observe import ObservedEngine, Recorder
from ._session import Session
from .profile import Profile


def stuck_now(session: Session, profile: Profile) -> list[Stuck]:
    """Between forward and backward: storages that were moved and that somebody still holds."""
    store = session._store
    plan = session.plan
    if store is None or plan is None or not isinstance(store.engine, ObservedEngine):
        return []
    store.release_sources(0)
    names = {index: name for name, index in plan.index.items()}
    described = _described(profile)
    living = []
    for handle, (source, nbytes, block) in list(store.sources.items()):
        storage = source()
        if storage is not None and handle in store.live and handle not in store.stash:
            key = store.engine.frame(handle)
            ordinal = key[1] if key is not None else -1
            living.append((storage, names.get(key[0], block) if key else block, ordinal, nbytes))
        del storage
    reasons = holders([item[0] for item in living], session._root) if living else {}
    return [
        Stuck(block, ordinal, *described.get((block, ordinal), ((), "")), nbytes,
              reasons[storage._cdata])
        for storage, block, ordinal, nbytes in living
    ]  # fmt: skip


def _described(profile: Profile) -> dict[tuple[str, int], tuple[tuple[int, ...], str]]:
    return {
        (block.name, storage.ordinal): (tuple(storage.shape), storage.dtype)
        for block in profile.blocks
        for storage in block.storages
    }


def figures_of(
    session: Session,
    profile: Profile,
    backend: Backend,
    recorder: Recorder,
    counters: Mapping[str, Any],
    *,
    baseline: str,
    baseline_steps: Sequence[float],
    baseline_peak: int,
    steps: Sequence[float],
    peak: int,
    held: Sequence[Stuck],
) -> Figures:
    """Joins what was promised, planned and measured. ``counters`` are of the timed steps."""
    count = max(1, len(steps))
    engine = counters.get("engine", {})
    out = engine.get("bytes_out", {})
    stats = session.stats()
    return Figures(
        baseline=baseline,
        baseline_steps=tuple(baseline_steps),
        steps=tuple(steps),
        baseline_peak=baseline_peak,
        peak=peak,
        asked=stats["activation_budget"],
        activation_bytes=profile.activation_bytes,
        predicted_peak=stats["predicted_activation_peak"],
        exposed_s=engine.get("exposed_wait", 0.0) / count,
        recompute_s={b: s / count for b, s in counters.get("recompute_s", {}).items() if s > 0},
        prefetch_hits=engine.get("prefetch_hits", 0) / count,
        prefetch_misses=engine.get("prefetch_misses", 0) / count,
        links=tuple(_links(backend, recorder, engine, count)),
        frames=tuple(_frames(session, backend.gpu, recorder, len(steps))),
        moved_bytes=int(out.get("peer", 0) + out.get("host", 0)) // count,
        held=tuple(held),
        unmovable=tuple(_unmovable(profile)),
        overflowed=int(engine.get("overflow_to_host", 0) + engine.get("overflow_to_keep", 0)),
        unplanned_bytes=stats["unplanned_bytes"] // max(1, stats["forwards"]),
    )


def _unmovable(profile: Profile) -> list[Stuck]:
    return [
        Stuck(
            block.name, storage.ordinal, tuple(storage.shape), storage.dtype, storage.nbytes,
            storage.unmovable_reason,
        )
        for block in profile.blocks
        for storage in block.storages
        if storage.unmovable_reason
    ]  # fmt: skip


def _links(
    backend: Backend, recorder: Recorder, engine: Mapping[str, Any], steps: int
) -> list[LinkFigures]:
    gpu = backend.gpu
    promised = {(str(k["from"]), str(k["to"])): k for k in backend.describe().get("links", ())}
    found = []
    for tier in ("peer", "host"):
        devices = sorted(d for t, d in recorder.bytes_by_device if t == tier and d)
        for direction, nbytes, copies in (
            ("out", engine.get("bytes_out", {}), engine.get("puts", {})),
            ("in", engine.get("bytes_in", {}), engine.get("fetches", {})),
        ):
            moved = float(nbytes.get(tier, 0)) / steps
            if moved <= 0:
                continue
            rate, latency = _promise(promised, gpu, devices, direction)
            counted = copies.get(tier, 0) if isinstance(copies, Mapping) else 0
            if not counted:  # Fetches are not counted by tier: as many as put.
                counted = engine.get("puts", {}).get(tier, 0)
            lender = " and ".join(devices[:3]) or tier
            route = f"{gpu} -> {lender}" if direction == "out" else f"{lender} -> {gpu}"
            busy = engine.get("copy_busy", {}).get(direction, {}).get(tier, 0.0) / steps
            found.append(
                LinkFigures(tier, direction, route, rate, latency, moved, counted / steps, busy)
            )
    return found


def _promise(
    links: Mapping[tuple[str, str], Any], gpu: str, devices: Sequence[str], direction: str
) -> tuple[float, float]:
    """Bytes/s and latency of the slowest link of these; zeros where none is known."""
    known = []
    for device in devices:
        ways = [(gpu, device), (device, gpu)]
        link = next((links[w] for w in (ways if direction == "out" else ways[::-1]) if w in links),
                    None)  # fmt: skip
        if link is not None:
            known.append((float(link["bytes_per_second"]), float(link.get("latency_s", 0.0))))
    return min(known, default=(0.0, 0.0))


def _frames(session: Session, gpu: str, recorder: Recorder, steps: int) -> list[FrameFigures]:
    plan = session.plan
    names = {index: name for name, index in plan.index.items()} if plan is not None else {}
    # The recorder begins a step only where one is timed; other modes move nothing.
    timed = recorder.waits[-steps:] if steps else []
    found = []
    for key in sorted({key for step in timed for key in step}):
        lane = recorder.lanes.get((key.block, key.ordinal))
        if lane is None:
            continue
        where = lane.device or lane.tier
        route = f"{gpu} -> {where}" if key.direction == "out" else f"{where} -> {gpu}"
        waits = tuple(step.get(key, 0.0) for step in timed)
        name = names.get(key.block, str(key.block))
        found.append(
            FrameFigures(
                name, key.ordinal, lane.nbytes, key.direction, f"{lane.tier} link {route}", waits
            )
        )
    return found
