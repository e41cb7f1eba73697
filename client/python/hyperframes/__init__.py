"""HyperFrames decides, activation by activation, where it waits between forward and backward.

import hyperframes as hf

profile = hf.profile(model, sample_input, loss_fn=loss_fn, optimizer=optimizer)
print(profile.summary())
with hf.hyperframes(model, profile=profile, activation_budget="2GiB") as model:
    ...  # forward, loss, backward, step: unchanged
"""

from ._meter import ActivationMeter, metered
from ._profiler import profile
from ._registry import stats
from ._session import Session
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
    Unavailable,
    Unimplemented,
)
from .plan import Plan
from .profile import Profile

hyperframes = Session

exit_with_codes()

__version__ = "0.1.0"

__all__ = [
    "ActivationMeter",
    "Client",
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
    "Session",
    "Unavailable",
    "Unimplemented",
    "hyperframes",
    "metered",
    "profile",
    "stats",
]
