"""Files with the time at which their store says they were last written, and folders that nothing is left in.

Invariant: times are the store's own (a local file's mtime, an object's date of change), never this machine's clock, so
that they can be compared with each other. 0.0 where a store tells none.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from marin.fs.faults import NotFound, attempt
from marin.fs.listing import local_below, remote_below
from marin.fs.location import is_local, join, remote

_TIME_KEYS = ("LastModified", "updated", "last_modified", "mtime", "modified", "created")  # S3, GCS, Azure, others


class Aged(NamedTuple):
    """One stored file: `path` relative to what was listed, size, and when it was written."""

    path: str
    url: str
    size: int
    modified: float
    """Seconds since 1970 on the store's clock; 0.0 if it does not say."""


def list_aged(url: str) -> list[Aged]:
    """Return all files below a folder, sorted by path; an absent folder has none."""
    if is_local(url):
        return sorted(_local(url, pruned=lambda folder: False))
    return sorted(_object(url, path, info) for path, info in remote_below(url))


def list_aged_here(url: str) -> list[Aged]:
    """Return the files in a folder, not those in folders in it; an absent folder has none."""
    if is_local(url):
        return sorted(_local(url, pruned=lambda folder: True))
    filesystem, path = remote(url)
    try:
        found = attempt(lambda: filesystem.ls(path, detail=True), url)
    except NotFound:
        return []
    files = [info for info in found if info["type"] == "file"]
    return sorted(_object(url, str(info["name"]).rsplit("/", 1)[-1], info) for info in files)


def _local(root: str, *, pruned: Callable[[str], object]) -> Iterator[Aged]:
    for path, child in local_below(root, pruned):
        with contextlib.suppress(FileNotFoundError):  # it went away while we looked
            status = child.stat(follow_symlinks=False)
            yield Aged(path, child.path, status.st_size, status.st_mtime)


def _object(root: str, path: str, info: dict[str, Any]) -> Aged:  # Any: fsspec's info
    return Aged(path, join(root, path), int(info.get("size") or 0), _time(info))


def _time(info: dict[str, object]) -> float:
    told = next((info[key] for key in _TIME_KEYS if info.get(key)), None)
    if isinstance(told, str):
        with contextlib.suppress(ValueError):
            told = datetime.fromisoformat(told)
    if isinstance(told, datetime):
        return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
    return float(told) if isinstance(told, int | float) else 0.0


def delete_empty_folders(url: str) -> None:
    """Delete a local folder and those in it, as far as they are empty; object stores have no folders."""
    if not is_local(url):
        return
    for folder, _, _ in os.walk(url, topdown=False):
        with contextlib.suppress(OSError):  # somebody has put something there, or deleted it as well
            os.rmdir(folder)


def delete_empty_folder(url: str) -> None:
    """Delete one local folder if nothing is in it."""
    if is_local(url):
        with contextlib.suppress(OSError):
            os.rmdir(url)
