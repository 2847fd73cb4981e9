"""Where a step that reads files has them from: a URL, or a folder that another step makes."""

from collections.abc import Sequence
from typing import Any

from marin.base.errors import ConfigurationError
from marin.graph.artifact import Folder
from marin.graph.step import Step


def check_origin(
    step: Step[Any], url: str | None, folder: Step[Folder] | None, match: str, exclude: Sequence[str]
) -> None:
    """Raise ConfigurationError unless there is one origin, with the options that belong to it."""
    name = type(step).__name__
    if (url is None) == (folder is None):
        raise ConfigurationError(
            f"{name} needs a `url` or a `folder`" + (", not both" if url is not None else ""),
            where=f"{name}.url",
            hint='give url="path/**/*.jsonl" for files that lie somewhere, or folder=Download(...)',
        )
    if url is not None and match != "**":
        raise ConfigurationError(
            f"{name} got `match`, which chooses in a `folder`", where=f"{name}.match", hint="put the pattern into `url`"
        )
    if folder is not None and exclude:
        raise ConfigurationError(
            f"{name} got `exclude`, which belongs to a `url`", where=f"{name}.exclude", hint="choose by `match`"
        )
