"""What the front asks of whoever moves bytes and whoever plans. The native library is one
implementation; tests have another. Streams are integers: ``cudaStream_t``, or 0 on the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

KEEP, PEER, HOST = 0, 1, 2
TIER_NAMES = ("keep", "peer", "host")


class Placement(NamedTuple):
    """Where a put really went. ``handle`` 0: it stayed, the caller keeps the source."""

    handle: int
    tier: int
    overflow: bool


class Engine(Protocol):
    """Moves storages by handle. See ``agent/engine/frame_engine.h`` for each contract."""

    def put(
        self,
        micro_batch: int,
        block: int,
        ordinal: int,
        source: int,
        nbytes: int,
        tier: int,
        device: str,
        preferred_offset: int,
        stream: int,
    ) -> Placement: ...

    def take_releasable(self, limit: int, stream: int) -> list[int]: ...

    def fetch(self, handle: int, destination: int, is_prefetch: bool, stream: int) -> None: ...

    def wait(self, handle: int, stream: int) -> None: ...

    def next_to_prefetch(self) -> list[tuple[int, int]]: ...

    def drop(self, handle: int) -> None: ...

    def set_limits(self, stash: int, prefetch: int) -> None: ...

    def quiesce(self) -> None: ...

    def stats(self) -> dict[str, Any]: ...

    def report(
        self,
        steps: int,
        activation_bytes: int,
        activation_peak_bytes: int,
        recompute_ns: int,
        predicted_peak_bytes: int,
    ) -> None: ...

    def report_micro_batches(self, stage: int, count: int, run_ns: int, wait_ns: int) -> None: ...

    def take_revocation(self) -> str | None: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """Plans a rank's problem and opens an engine for the plan."""

    @property
    def gpu(self) -> str:
        """UUID of the GPU that this process computes on."""
        ...

    @property
    def plans_once(self) -> bool:
        """Only one plan can be asked for; later ones live with the leases of the first."""
        ...

    def describe(self) -> dict[str, Any]:
        """``{"devices": [DeviceProfile], "links": [LinkProfile]}``."""
        ...

    def plan(self, rank_problem: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """A ``FramePlan`` as JSON values, with ``grants`` where leases were granted elsewhere."""
        ...

    def open_engine(self, plan: dict[str, Any], options: dict[str, Any]) -> Engine:
        """An engine over the plan's leases; ``options``: verify, chaos."""
        ...

    def close(self) -> None: ...
