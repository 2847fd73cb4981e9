"""Points of a run in the files of other tools, by their own libraries, which are extras.

Invariant: what an earlier export wrote is never added to: a second one beside it would show every point twice.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from marin.base.errors import ConfigurationError
from marin.base.lazy import LazyModule
from marin.view.metrics import Point

tensorboard = LazyModule("tensorboardX")
wandb = LazyModule("wandb")


class MetricWriter(Protocol):
    """Writes points of one run; close it to be sure that they are on disk."""

    def write(self, points: Iterable[Point]) -> None:
        """Add points, in order."""

    def close(self) -> None: ...


class TensorBoardWriter:
    """Event files, a folder a step of the plan: `DIR/RUN/NAME`, each a run in TensorBoard."""

    def __init__(self, folder: Path, run: str) -> None:
        """Raises ConfigurationError where the run was exported already, or tensorboardX is not installed."""
        self._folder = new_folder(folder, run)
        self._open = _imported(tensorboard, "SummaryWriter", extra="tensorboard")
        self._writers: dict[str, Any] = {}  # Any: tensorboardX has no types

    def write(self, points: Iterable[Point]) -> None:
        """Add points, and have them on disk."""
        for point in points:
            if point.name not in self._writers:
                self._writers[point.name] = self._open(str(self._folder / file_name(point.name)))
            seconds = datetime.fromisoformat(point.time).timestamp()
            for name, value in point.values.items():
                self._writers[point.name].add_scalar(name, value, point.at, seconds)
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


class WandbWriter:
    """Offline runs of Weights & Biases, one a step of the plan, under `DIR/RUN`; `wandb sync` sends them."""

    def __init__(self, folder: Path, run: str) -> None:
        """Raises ConfigurationError where the run was exported already, or wandb is not installed."""
        self._folder, self._run = new_folder(folder, run), run
        self._init = _imported(wandb, "init", extra="wandb")
        self._runs: dict[str, Any] = {}  # Any: an extra's type

    def write(self, points: Iterable[Point]) -> None:
        """Add points; their `step` is the axis of every plot."""
        for point in points:
            if point.name not in self._runs:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._runs[point.name] = self._begin(point.name)
            seconds = datetime.fromisoformat(point.time).timestamp()
            self._runs[point.name].log({**point.values, "step": point.at, "_timestamp": seconds})

    def _begin(self, name: str) -> Any:
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)
        begun = self._init(
            mode="offline",
            dir=str(self._folder),
            project="marin",
            name=f"{self._run} {name}",
            group=self._run,
            reinit="create_new",
            settings=settings,
        )
        begun.define_metric("step")
        begun.define_metric("*", step_metric="step")
        return begun

    def close(self) -> None:
        """End the runs."""
        for each in self._runs.values():
            each.finish()


WRITERS: dict[str, type[TensorBoardWriter] | type[WandbWriter]] = {
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
}


def new_folder(folder: Path, run: str) -> Path:
    """Return the folder of a run's export; ConfigurationError if something is in it."""
    own = folder / run
    if own.is_dir() and any(own.iterdir()):
        raise ConfigurationError(
            f"run {run} was exported there before",
            where=str(own),
            hint="delete that folder to export again, or name another",
        )
    return own


def file_name(name: str) -> str:
    """Return the name of a step of the plan as one that no file system refuses."""
    return re.sub(r"[^\w.=+-]", "_", name).lstrip(".") or "_"


def _imported(module: LazyModule, attribute: str, *, extra: str) -> Any:  # Any: an extra's
    try:
        return getattr(module, attribute)
    except ImportError as error:
        raise ConfigurationError(
            f"`--to {extra}` writes with a library that is not installed: {error}",
            hint=f"pip install 'marin[{extra}]'",
        ) from error
