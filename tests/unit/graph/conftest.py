"""A first-party package `lab`, written anew for each load."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Load = Callable[[dict[str, str]], Any]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what is parsed out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import package `lab` from a fresh folder with these files, and return its module `main`."""
    folders = itertools.count()

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "lab"]:
            del sys.modules[name]

    def make(files: dict[str, str]) -> Any:
        forget()
        folder = tmp_path / str(next(folders))
        for name, text in files.items():
            path = folder / "lab" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module("lab.main")

    yield make
    forget()
