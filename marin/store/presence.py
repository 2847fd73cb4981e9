"""Whether recorded files are there, asked concurrently."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from marin import fs
from marin.graph.files import FileRef

THREADS = 16


def present(files: Sequence[FileRef]) -> bool:
    """Whether every file exists (local files also with their size)."""
    if not files:
        return True
    if all(fs.is_local(file.url) for file in files):
        return all(_present_local(file) for file in files)
    with ThreadPoolExecutor(THREADS) as pool:
        return all(pool.map(lambda file: fs.exists(file.url), files))


def _present_local(file: FileRef) -> bool:
    try:
        return os.stat(file.url).st_size == file.size
    except OSError:
        return False
