"""What tests of the cluster share: their helpers and modules of steps are importable, and one cluster serves a file.

A file that uses `cluster` says in WORKERS how many CPUs its nodes have, and in ENVIRONMENT what Ray is told.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MODULES = HERE / "modules"
sys.path[:0] = [str(MODULES), str(HERE)]  # before the files that import from there are collected


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> Iterator[Any]:
    harness = importlib.import_module("harness")
    environment = request.module.ENVIRONMENT
    with harness.cluster_of_nodes(workers=request.module.WORKERS, environment=environment) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole: Any) -> Any:
    """The cluster with all its nodes, whatever the test before did to them."""
    whole.start()
    return whole
