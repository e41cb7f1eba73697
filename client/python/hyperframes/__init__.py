"""HyperFrames decides, activation by activation, where it waits between forward and backward.

import hyperframes as hf

profile = hf.profile(model, sample_input, loss_fn=loss_fn, optimizer=optimizer)
print(profile.summary())
with hf.hyperframes(model, profile=profile, activation_budget="2GiB") as model:
    ...  # forward, loss, backward, step: unchanged
"""

from typing import TYPE_CHECKING, Any

from ._check import check
from ._check_report import CheckReport
from ._compare import compare
from ._comparison import Comparison
from ._meter import ActivationMeter, metered
from ._profiler import profile
from ._registry import stats
from ._session import Session
from ._version import VERSION
from ._worker import exit_with_codes
from .client import Client
from .errors import (
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    HyperFramesError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RecomputeMismatch,
    ResourceExhausted,
    ResultsDiffer,
    Unavailable,
    Unimplemented,
)
from .losses import chunked_cross_entropy
from .plan import Plan
from .profile import Profile

hyperframes = Session

exit_with_codes()

if TYPE_CHECKING:
    from ._checkpoint import Checkpoints
    from ._checkpoint import Checkpoints as checkpoint  # noqa: N813


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: it imports torch.distributed.checkpoint, which takes a while.
    if name in ("checkpoint", "Checkpoints"):
        from ._checkpoint import Checkpoints

        return Checkpoints
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = VERSION

__all__ = [
    "ActivationMeter",
    "CheckReport",
    "Checkpoints",
    "Client",
    "Comparison",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "HyperFramesError",
    "InvalidArgument",
    "NotFound",
    "PermissionDenied",
    "Plan",
    "Profile",
    "RecomputeMismatch",
    "ResourceExhausted",
    "ResultsDiffer",
    "Session",
    "Unavailable",
    "Unimplemented",
    "check",
    "checkpoint",
    "chunked_cross_entropy",
    "compare",
    "hyperframes",
    "metered",
    "profile",
    "stats",
]
