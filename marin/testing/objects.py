"""Objects by key, in memory or in a local folder: what a simulated store keeps, without any fault.

Invariant: an object is there whole or not at all, and `create` has one winner, between threads and, in a folder,
between processes. It shares no code with `marin.fs`, which it is there to try. Keys are relative and posix; folders
are only what keys have in common, as in an object store.
"""

import contextlib
import os
import threading
import time
import uuid
from pathlib import Path
from typing import NamedTuple, Protocol

_INCOMING = ".incoming"


class Stored(NamedTuple):
    """One object of a listing."""

    size: int
    modified: float
    """Seconds since 1970."""


class Objects(Protocol):
    """What both places can do."""

    def get(self, key: str) -> bytes:
        """Return an object; FileNotFoundError when there is none."""

    def create(self, key: str, data: bytes) -> None:
        """Store a new object; FileExistsError when there is one."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object in place of what may be there."""

    def delete(self, key: str) -> None:
        """Delete an object; that there is none is fine, as in S3."""

    def below(self, folder: str) -> dict[str, Stored]:
        """Return what lies below a folder (all, for an empty one), sorted by key."""


class MemoryObjects:
    """Objects of this process."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes:
        with self._lock:
            if key not in self._objects:
                raise FileNotFoundError(key)
            return self._objects[key][0]

    def create(self, key: str, data: bytes) -> None:
        with self._lock:
            if key in self._objects:
                raise FileExistsError(key)
            self._put(key, data)

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            self._put(key, data)

    def _put(self, key: str, data: bytes) -> None:
        self._objects[key] = (bytes(data), time.time())

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def below(self, folder: str) -> dict[str, Stored]:
        prefix = f"{folder}/" if folder else ""
        with self._lock:
            found = {key: entry for key, entry in self._objects.items() if key.startswith(prefix)}
        return {key: Stored(len(data), modified) for key, (data, modified) in sorted(found.items())}


class FolderObjects:
    """Objects as files of a local folder, for several processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes:
        try:
            return (self._folder / key).read_bytes()
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(key) from error

    def create(self, key: str, data: bytes) -> None:
        incoming = self._incoming(data)
        try:
            target = self._folder / key
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(incoming, target)
        finally:
            incoming.unlink()

    def put(self, key: str, data: bytes) -> None:
        incoming = self._incoming(data)
        target = self._folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(incoming, target)

    def _incoming(self, data: bytes) -> Path:
        folder = self._folder / _INCOMING
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / uuid.uuid4().hex
        path.write_bytes(data)
        return path

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            (self._folder / key).unlink()

    def below(self, folder: str) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for root, folders, names in os.walk(self._folder / folder):
            if _INCOMING in folders:
                folders.remove(_INCOMING)
            for name in names:
                path = Path(root, name)
                with contextlib.suppress(FileNotFoundError):  # it went away while we looked
                    status = path.stat()
                    found[path.relative_to(self._folder).as_posix()] = Stored(status.st_size, status.st_mtime)
        return dict(sorted(found.items()))
