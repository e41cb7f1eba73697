"""Clusters of real daemons for the tests that cross rooms."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node

TWO_NODES = (Node("a", "2 x 256MiB"), Node("b", "2 x 128MiB"))


@pytest.fixture
def run_directory() -> Iterator[Path]:
    """Short, because unix sockets are made in it (pytest's own tmp_path is not)."""
    path = Path(tempfile.mkdtemp(prefix="hf-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def cluster(run_directory: Path) -> Iterator[LocalCluster]:
    """A coordinator and two agents of its own for one test."""
    with LocalCluster(run_directory, TWO_NODES) as started:
        yield started


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[LocalCluster]:
    """One cluster for all tests of a module: they leave it as they found it."""
    path = Path(tempfile.mkdtemp(prefix="hf-"))
    with LocalCluster(path, TWO_NODES) as started:
        yield started
    shutil.rmtree(path, ignore_errors=True)
