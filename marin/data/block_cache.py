"""Blocks of remote files: fetched by a few threads, checked, and kept in memory and on disk while they are wanted.

Invariants: a block that is given was compared with its checksum, wherever it came from; one that does not agree is
fetched once more, and then is an error that names shard and block. No more blocks are held than `memory_blocks`, those
under way included, and no more bytes on disk than `disk_bytes`, nearly: several processes may share a folder. Storage
that asks to slow down is asked again, later and later, by `marin.fs`.
"""

import contextlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import xxhash

from marin import fs
from marin.data.blocks import Checked, check_block, damaged_block

MEMORY_BLOCKS = 16
THREADS = 4
DISK_BYTES = 8 * 2**30
_SUM_BYTES = 16

Key = tuple[str, int]


class BlockCache:
    """Gives blocks of remote files by number. Threads may share it; it pickles to an empty one with its settings."""

    def __init__(
        self,
        *,
        folder: str | None = None,
        disk_bytes: int = DISK_BYTES,
        memory_blocks: int = MEMORY_BLOCKS,
        threads: int = THREADS,
    ) -> None:
        """`folder`: a local folder that outlives the process, where blocks are kept as well."""
        assert memory_blocks >= 2
        self._settings = {"folder": folder, "disk_bytes": disk_bytes}
        self._memory_blocks = memory_blocks
        self._threads = threads
        self._disk = _Disk(Path(folder), disk_bytes) if folder else None
        self._lock = Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._blocks: OrderedDict[Key, Future[bytes]] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self._settings["folder"], self._settings["disk_bytes"], self._memory_blocks, self._threads))

    def block(self, checked: Checked, number: int) -> bytes:
        """Return a block; StoreError when it is damaged or its storage does not answer."""
        return self._future(checked, number).result()

    def prefetch(self, checked: Checked, numbers: Iterable[int]) -> None:
        """Begin to fetch blocks, in this order; at most half of what memory holds, so that none pushes others out."""
        for number in list(numbers)[: self._memory_blocks // 2]:
            self._future(checked, number)

    def _future(self, checked: Checked, number: int) -> "Future[bytes]":
        key = (checked.file.digest or checked.file.url, number)
        with self._lock:
            known = self._blocks.get(key)
            if known is not None and not (known.done() and known.exception()):  # what failed may be asked for again
                self._blocks.move_to_end(key)
                return known
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="blocks")
            future = self._blocks[key] = self._pool.submit(self._load, checked, number, key)
            self._blocks.move_to_end(key)
            while len(self._blocks) > self._memory_blocks:
                self._blocks.popitem(last=False)
            return future

    def _load(self, checked: Checked, number: int, key: Key) -> bytes:
        begin, length = checked.block_range(number)
        if self._disk is not None:
            kept = self._disk.get(key)
            if kept is not None and len(kept) == length and check_block(checked, number, kept):
                return kept
        for _ in range(2):
            data = fs.read_range(checked.file.url, begin, length)
            if len(data) == length and check_block(checked, number, data):
                if self._disk is not None:
                    self._disk.put(key, data)
                return data
        raise damaged_block(checked, number)


def _restore(folder: str | None, disk_bytes: int, memory_blocks: int, threads: int) -> BlockCache:
    return BlockCache(folder=folder, disk_bytes=disk_bytes, memory_blocks=memory_blocks, threads=threads)


class _Disk:
    """Blocks in a local folder, least recently used ones deleted first; a full or failing disk keeps fewer, or none."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lock = Lock()
        self._used: int | None = None

    def get(self, key: Key) -> bytes | None:
        """Return what is kept, if it is whole."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        kept = data[_SUM_BYTES:]
        return kept if data[:_SUM_BYTES] == xxhash.xxh3_128_digest(kept) else None

    def put(self, key: Key, data: bytes) -> None:
        """Keep a block."""
        path = self._path(key)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._make_room(len(data) + _SUM_BYTES)
                with partial.open("wb") as file:
                    file.write(xxhash.xxh3_128_digest(data))
                    file.write(data)
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)

    def _path(self, key: Key) -> Path:
        name = xxhash.xxh3_128_hexdigest(f"{key[0]}/{key[1]}".encode())
        return self._folder / name[:2] / name

    def _make_room(self, size: int) -> None:
        """Delete the oldest blocks until one more fits, a tenth at once: a listing costs more than a block."""
        with self._lock:
            if self._used is None or self._used + size > self._limit:
                found = []
                for path in self._folder.glob("*/*"):
                    with contextlib.suppress(OSError):  # another process has deleted it
                        status = path.stat()
                        found.append((status.st_mtime_ns, str(path), status.st_size))
                self._used = sum(size for _, _, size in found)
                goal = self._limit if self._used + size <= self._limit else self._limit * 9 // 10
                for _, name, length in sorted(found):
                    if self._used + size <= goal:
                        break
                    with contextlib.suppress(OSError):
                        os.unlink(name)
                    self._used -= length
            self._used += size
