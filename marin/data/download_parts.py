"""What has come of a download, kept beside the store's artifact so that a killed one goes on where it was.

A file above `PART_BYTES` is kept in parts of that size as it comes, and they are deleted once it is whole. Invariant:
parts are of one version of the file, that of `version.json`, which holds the validators that the server gave with it;
what `read` yields are its first bytes, each part compared with the hash in its name. A server that gives no validator
(a strong ETag, a date) could not say whether the rest is of the same version: nothing is kept then.
"""

import json
from collections.abc import Iterator

import xxhash

from marin import fs
from marin.base.json import Json, dumps

PART_BYTES = 32 * 2**20
"""So much is downloaded again at most, and held in memory; a file that is larger is written twice."""

VERSION = "version.json"

Version = dict[str, Json]
"""ETag, Last-Modified and size (None: not said) of a file on its server."""


def validator(version: Version | None) -> str | None:
    """Return what If-Range takes: the ETag if it is a strong one, else the date; None without either."""
    etag, date = ((version or {}).get(name) for name in ("ETag", "Last-Modified"))
    if isinstance(etag, str) and not etag.startswith("W/"):
        return etag
    return date if isinstance(date, str) else None


class Parts:
    """The parts of one file below `folder`, the URL of a folder of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: bytearray | None = None
        self._number = 0

    def begun(self) -> Version | None:
        """Return the version of which there are parts; None when there are none."""
        try:
            found: Version = json.loads(fs.read(fs.join(self._folder, VERSION)))
        except fs.NotFound:
            return None
        return found

    def read(self) -> Iterator[bytes]:
        """Yield the parts from the first on, up to one that is missing or damaged; `add` goes on after them."""
        names = {name.partition("-")[0]: name for name in fs.list_folder(self._folder)}
        self._held = bytearray()
        while (name := names.get(f"{self._number:08}")) is not None:
            data = fs.read(fs.join(self._folder, name))
            if name != self._name(data):
                fs.delete(fs.join(self._folder, name))
                return
            self._number += 1
            yield data

    def start(self, version: Version) -> None:
        """Keep what is added from now on, as parts of this version; nothing if it has no validator."""
        if self._held is None and validator(version) is not None:
            fs.create(fs.join(self._folder, VERSION), dumps(version).encode())
            self._held = bytearray()

    def add(self, data: bytes) -> None:
        """Add the file's next bytes."""
        if self._held is None:
            return
        self._held += data
        while len(self._held) >= PART_BYTES:
            part = bytes(memoryview(self._held)[:PART_BYTES])
            del self._held[:PART_BYTES]
            fs.create(fs.join(self._folder, self._name(part)), part, durable=False)
            self._number += 1

    def discard(self) -> None:
        """Delete all parts: the file is whole, or another one now."""
        fs.delete_folder(self._folder)
        self._held, self._number = None, 0

    def _name(self, data: bytes) -> str:
        return f"{self._number:08}-{xxhash.xxh3_128_hexdigest(data)}"
