"""Host memory that turns out not to be there: a plan with less of it, or with none.

A container's limit is known before (``HYPERFRAMES_HOST_BYTES`` is cut to it), but whether a driver
may pin is known once it has tried: other processes take memory meanwhile, and some drivers keep to
``ulimit -l``. It is tried when an engine is opened, so what fails here never fails in a step.
"""

from __future__ import annotations

from typing import Any

from . import _native
from ._engine import HOST, Engine
from ._planbook import PlanBook
from ._progress import tell
from .errors import ResourceExhausted
from .plan import Plan, read_tier
from .profile import Signature

_LEAST = 64 << 20  # Below it a host tier is not worth another attempt.
_MOST_CUTS = 4  # Each halves it: pinning takes long, and the last attempt is without.


def host_bytes(plan: Plan) -> int:
    """Bytes of host memory that the plan's leases are of."""
    return sum(
        int(need["bytes"])
        for need in plan.rank.get("leases", ())
        if read_tier(need["tier"]) == HOST
    )


def open_engine(
    book: PlanBook, plan: Plan, signature: Signature, options: dict[str, Any]
) -> tuple[Engine, Plan]:
    """An engine over ``plan``'s leases, or over those of a plan that needs less host memory.

    Raises:
        ResourceExhausted: what is not there is no host memory, or no plan does without it.
    """
    for cut in range(_MOST_CUTS + 1):
        values = {**options, "no_lenders": book.no_lenders, "no_host": book.no_host}
        try:
            return book.backend.open_engine(plan.rank, values), plan
        except ResourceExhausted as error:
            needed = host_bytes(plan)
            if needed == 0 or "host memory" not in str(error):
                raise
            # What a coordinator has granted is one lease, and cannot be taken in part.
            last = book.backend.plans_once or cut + 1 >= _MOST_CUTS or needed // 2 < _LEAST
            less = 0 if last else needed // 2
            amount = _native.format_bytes(less) if less else "none"
            tell(
                f"{error}. Planned anew with {amount} of it, instead of "
                f"{_native.format_bytes(needed)}."
            )
            book.lend_less_host(less)
            plan = book.current(signature)
    raise AssertionError("the last attempt needs no host memory")
