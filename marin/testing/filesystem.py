"""The fsspec file system behind `fault://`: an object store, as fsspec's clients of object stores show one.

`fault://lab/store` is in the storage `lab` of this process, `fault:///tmp/lab/store` in the one planned in the folder
`/tmp/lab`; `fault://ada@lab/store` is the same place, used by the client `ada`. The protocol is an entry point of the
package, so that a process which never imports this module, such as a worker, can open such URLs.

It has conditional puts (`mode="create"`), listings without folders of their own, and no cache.
"""

import contextlib
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from marin.testing.objects import Stored
from marin.testing.storage import Place, place

PROTOCOL = "fault"


class FaultFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Turns fsspec's calls into those of a `FaultyStorage`."""

    protocol = PROTOCOL
    root_marker = ""
    cachable = False

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return an object's bytes, or those from `start` to `end`; one `read`."""
        storage, key, client = self._place(path)
        return storage.call("read", key, client, lambda: storage.objects.get(key)[start:end])

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Store an object: a `create` when `mode` is "create", otherwise a `put`."""
        storage, key, client = self._place(path)
        if mode == "create":
            storage.call("create", key, client, lambda: storage.objects.create(key, value))
        else:
            storage.call("put", key, client, lambda: storage.objects.put(key, value))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return what is known of an object, or that it is a folder; one `info`."""
        storage, key, client = self._place(path)
        return storage.call("info", key, client, lambda: self._info(path, Place(storage, key, client)))

    def exists(self, path: str, **_: Any) -> bool:
        """Whether an object or folder is there; errors are raised, as s3fs does and fsspec's base class does not."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return a folder's children, FileNotFoundError for an absent one; one `list`."""
        storage, key, client = self._place(path)
        found = storage.call("list", key, client, lambda: storage.objects.below(key))
        if not found:
            raise FileNotFoundError(path)
        children: dict[str, dict[str, Any]] = {}
        for name, stored in found.items():
            first, *deeper = name[len(key) + 1 if key else 0 :].split("/")
            child = f"{self._strip_protocol(path)}/{first}"
            children[child] = _folder(child) if deeper else _file(child, stored)
        return list(children.values()) if detail else list(children)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """Return all objects below a folder, by name; one `list`."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail)
        storage, key, client = self._place(path)
        found = storage.call("list", key, client, lambda: storage.objects.below(key))
        base = self._strip_protocol(path)
        base = base[: len(base) - len(key)] if key else f"{base}/"
        entries = {base + name: _file(base + name, stored) for name, stored in found.items()}
        return entries if detail else list(entries)

    def rm_file(self, path: str) -> None:
        """Delete an object; one `delete`, and fine when there is none."""
        storage, key, client = self._place(path)
        storage.call("delete", key, client, lambda: storage.objects.delete(key))

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete objects, with `recursive` whole folders: a `list` and a `delete` for each."""
        for each in [path] if isinstance(path, str) else path:
            for name in self.find(each) if recursive else [each]:
                self.rm_file(name)
            if recursive:
                self.rm_file(each)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Nothing: folders are what names have in common."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing: folders are what names have in common."""

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "FaultFile":
        options.pop("autocommit", None)
        return FaultFile(self, path, mode=mode, **options)

    def _place(self, path: str) -> Place:
        return place(self._strip_protocol(path))

    def _info(self, path: str, at: Place) -> dict[str, Any]:
        name = self._strip_protocol(path)
        with contextlib.suppress(FileNotFoundError):
            data = at.storage.objects.get(at.key)
            etag = md5(data, usedforsecurity=False).hexdigest()
            return {**_file(name, Stored(len(data), 0.0)), "ETag": f'"{etag}"'}
        if at.key and not at.storage.objects.below(at.key):
            raise FileNotFoundError(path)
        return _folder(name)


class FaultFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file open for reading in ranges, or for writing in parts that become an object when it is closed."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start=start, end=end)
        return data

    def _initiate_upload(self) -> None:
        self._parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        storage, key, client = place(self.fs._strip_protocol(self.path))
        piece = self.buffer.getvalue()
        if not final:
            storage.call("part", key, client, lambda: self._parts.append(piece))
            return True
        data = b"".join([*self._parts, piece])
        self.fs.pipe_file(self.path, data, mode="create" if "x" in self.mode else "overwrite")
        return True

    def discard(self) -> None:
        """Forget what has been written."""
        self._parts = []


def _file(name: str, stored: Stored) -> dict[str, Any]:
    modified = datetime.fromtimestamp(stored.modified, UTC)
    return {"name": name, "size": stored.size, "type": "file", "LastModified": modified}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}
