"""A private folder in which one attempt, or one shard, writes its files.

Paths are relative, posix, and may not climb; each is written once. It pickles as its URL and what it has recorded.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import BinaryIO, cast

from marin.base.errors import ConfigurationError
from marin.base.json import Json
from marin.fs.location import join
from marin.fs.read import FileReader
from marin.fs.write import write_stream
from marin.graph.files import Contents, FileRef, Shard


class FolderOutput:
    """Writes below `url`, hashing what streams through; implements `marin.graph.files.Output`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._files: dict[str, FileRef] = {}

    @property
    def url(self) -> str:
        """The folder."""
        return self._url

    @property
    def files(self) -> tuple[FileRef, ...]:
        """What has been written, sorted by path."""
        return tuple(self._files[path] for path in sorted(self._files))

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a new file for writing; whole and recorded after the block, absent when it raises."""
        self._check(path)
        url = join(self._url, path)
        with write_stream(url) as stream:
            yield cast(BinaryIO, stream)
        self._files[path] = FileRef(path, url, *stream.written)

    def write(self, path: str, data: bytes) -> FileRef:
        """Write a whole file."""
        with self.open(path) as file:
            file.write(data)
        return self._files[path]

    def adopt(self, files: Sequence[FileRef]) -> None:
        """Record files that another process has written below `url`."""
        for file in files:
            self._check(file.path)
            assert file.url == join(self._url, file.path), f"{file.url} does not lie in {self._url}"
            self._files[file.path] = file

    def contents(self, *, meta: Json = None, shards: Sequence[Shard] = ()) -> Contents:
        """Return what has been written so far, to make an artifact from."""
        return Contents(FileReader(), self.files, tuple(shards), meta)

    def _check(self, path: str) -> None:
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or str(pure) != path:
            raise ConfigurationError(
                f"{path!r} is no path for an output file",
                where=self._url,
                hint="use a relative path such as data/x.npy",
            )
        if path in self._files:
            raise ConfigurationError(
                f"output file {path!r} is written twice", where=self._url, hint="give each file a path of its own"
            )
