"""What the fault tests share: no waiting between tries, and modules that other processes can import too."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin.fs import faults

MODULES = str(Path(__file__).parent / "modules")
if MODULES not in sys.path:
    sys.path.insert(0, MODULES)


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    """Try again at once: the pauses are up to six seconds a call, and nothing here gets better by waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "_FIRST_PAUSE", 0.0)
        yield
