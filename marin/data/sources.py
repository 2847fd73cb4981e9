"""External files as bytes: verified against their pin while they are read, decompressed.

Invariant: a file that is not what was pinned when planned never yields a result, and a truncated archive is never
taken for a whole one. A file that is read from end to end is compared with its pin; one that is read in parts was
surveyed before (marin/data/survey.py), and each block is compared with the survey's digest. What the bytes mean is not
known here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from marin import fs
from marin.base.errors import InputError, StoreError
from marin.data.codecs import Damaged, Decompressed, check_magic, codec_of
from marin.fs.hashing import hasher_like, is_digest
from marin.graph.files import FileRef

CHUNK_BYTES = 2**20
"""Bytes of a file taken at once."""

MAX_RATIO = 250.0
"""Plain bytes for each stored one; text of any kind stays below 100."""


def chosen(files: Sequence[FileRef], match: str) -> list[FileRef]:
    """Return the files of a folder whose paths match a pattern; InputError when none does."""
    matches = fs.matcher(match)
    found = [file for file in files if matches(file.path)]
    if not found:
        has = ", ".join(f"`{file.path}`" for file in files[:10]) or "no files"
        raise InputError(f"no file matches {match!r}; the folder has {has}", where=match, hint="change `match`")
    return found


def read_whole(file: FileRef, *, max_bytes: int, max_ratio: float = MAX_RATIO) -> bytes:
    """Return all decompressed bytes of a file; Damaged with reason `too_long` beyond `max_bytes`.

    Raises as `read_chunks` does.
    """
    chunks, size = [], 0
    for chunk in read_chunks(file, max_ratio=max_ratio, max_bytes=max_bytes):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def read_stored(file: FileRef) -> bytes:
    """Return the stored bytes of a file; InputError when it is unreadable or changed since it was pinned."""
    with opened(file) as stream:
        raw = Verified(file, stream)
        data = b"".join(raw.chunks())
        raw.finish()
    return data


def read_chunks(file: FileRef, *, max_ratio: float = MAX_RATIO, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in pieces of about 1 MiB, to the end.

    Raises InputError when the file is unreadable or changed since it was pinned, Damaged when the archive is broken
    (after what is whole).
    """
    with opened(file) as stream:
        raw, size = Verified(file, stream), 0
        try:
            for chunk in decompressed(file.path, raw.chunks(), max_ratio=max_ratio):
                size += len(chunk)
                if max_bytes is not None and size > max_bytes:
                    raise too_long(0, max_bytes)
                yield chunk
        except Damaged:
            raw.finish()  # a file that changed is not a damaged one
            raise
        raw.finish()


def too_long(offset: int, max_bytes: int) -> Damaged:
    """Return what is said of a document that is longer than allowed."""
    hint = "give a larger `max_document_bytes`."
    return Damaged(f"longer than the {max_bytes} bytes allowed", offset, reason="too_long", hint=hint)


def decompressed(path: str, chunks: Iterator[bytes], *, max_ratio: float) -> Iterator[bytes]:
    """Yield the plain bytes of a file's stored ones; raises Damaged, also when the suffix is another format's."""
    codec = codec_of(path)
    first = next(chunks, b"")
    check_magic(path, first)
    again = _after(first, chunks)
    yield from again if codec is None else Decompressed(again, codec, max_ratio=max_ratio)


def _after(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from chunks


class Verified:
    """The bytes of a stream from its begin; `finish` takes the rest and compares all of them with the pin."""

    def __init__(self, file: FileRef, stream: BinaryIO) -> None:
        self._file = file
        self._stream = stream
        self._hash = hasher_like(file.digest, file.size)
        self._size = 0

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield what is left."""
        while chunk := self._stream.read(chunk_bytes):
            self._hash.update(chunk)
            self._size += len(chunk)
            yield chunk

    def finish(self) -> None:
        """Raise InputError unless the file is what was pinned."""
        for _ in self.chunks():
            pass
        if self._size != self._file.size or not is_digest(self._file.digest, self._hash):
            raise changed(self._file, f"has {self._size} with digest {self._hash.hexdigest()[:16]} now")


def changed(file: FileRef, now: str) -> InputError:
    """Return the error for a file that is not what was pinned."""
    return InputError(
        f"input changed during the run: `{file.path}` had {file.size} bytes with digest {file.digest[:16]} "
        f"when planned, and {now}",
        where=file.url,
        hint="run again: the plan pins the file as it is now",
    )


@contextmanager
def opened(file: FileRef) -> Iterator[BinaryIO]:
    """Give the stored bytes of a file; a refusal of the storage is an InputError that names it."""
    try:
        with fs.open_read(file.url) as stream:
            yield stream
    except (OSError, StoreError) as error:
        raise InputError(
            f"cannot read `{file.path}`: {error}", where=file.url, hint="check that it is there and may be read"
        ) from error
