"""Which context a model is in, or was in last: for ``hf.stats(model)``."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import nn

from ._config import mode
from .errors import FailedPrecondition


class _HasStats(Protocol):
    def stats(self) -> dict[str, Any]: ...


# A session that was left holds nothing of its model: else neither would ever go.
_sessions: weakref.WeakKeyDictionary[nn.Module, _HasStats] = weakref.WeakKeyDictionary()


def register(model: nn.Module, session: _HasStats) -> None:
    """From now on stats(model) asks this session."""
    _sessions[model] = session


def stats(model: nn.Module) -> dict[str, Any]:
    """What the context around ``model`` planned and did; see Session.stats().

    Raises:
        FailedPrecondition: the model was never in a HyperFrames context.
    """
    session = _sessions.get(model)
    if session is None:
        if mode() == "off":
            return {"mode": "off"}
        raise FailedPrecondition("The model is in no HyperFrames context: enter hf.hyperframes.")
    return session.stats()
