"""Every case of a loop runs under each rule and on each backend."""

from __future__ import annotations

from typing import Any

import pytest

from cases.framing import RULES


@pytest.fixture(params=list(RULES))
def rule(request: pytest.FixtureRequest) -> Any:
    return RULES[request.param]


@pytest.fixture(params=["unkind", "native"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
