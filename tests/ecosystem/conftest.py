"""Nothing here reaches a network, and nothing runs without the libraries that it is about."""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

LIBRARIES = ("transformers", "accelerate", "lightning", "peft")
missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = f"needs {', '.join(missing)} (deploy/requirements-ecosystem.txt)"
    for item in items:
        if missing and "ecosystem" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))
