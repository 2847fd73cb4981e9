"""Whether recorded files are there, asked all at once."""

import os
from collections.abc import Sequence

from marin import fs
from marin.fs.faults import attempt
from marin.graph.files import FileRef

THREADS = 16


def present(files: Sequence[FileRef]) -> bool:
    """Whether every file exists (local files also with their size)."""
    return present_each([files])[0]


def present_each(groups: Sequence[Sequence[FileRef]]) -> list[bool]:
    """Whether every file exists (local files also with their size), group by group."""
    remote = fs.exists_many(file.url for group in groups for file in group if not fs.is_local(file.url))
    return [
        all(_present_local(file) if fs.is_local(file.url) else file.url in remote for file in each) for each in groups
    ]


def _present_local(file: FileRef) -> bool:
    # A disk that does not answer is no missing file, or a commit would take a good manifest for a useless one.
    return attempt(lambda: _size(file.url), file.url) == file.size


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
