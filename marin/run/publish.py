"""`.at(url)`: a committed artifact copied to a place of the user's choice, whole or not at all.

The files come first and `manifest.json` last; a place that has that very manifest is left alone, so that a rerun copies
nothing. Another artifact at the place is replaced: it is a view of the store, and the store keeps both.
"""

import shutil
from collections.abc import Iterator

from marin import fs
from marin.base.errors import StoreError
from marin.graph.files import FileRef
from marin.store import Manifest, Store

_COPY_BYTES = 4 << 20


def publish(store: Store, manifest: Manifest, url: str) -> int:
    """Copy an artifact to `url` unless it is there already; return how many files were copied.

    An artifact's own files keep their paths; those of its shards go to `shards/00000/` and so on. Raises StoreError
    when a copy does not have the digest of its original.
    """
    place = fs.normalise(url)
    mark, record = fs.join(place, "manifest.json"), manifest.encode()
    if fs.exists(mark) and fs.read(mark) == record:
        return 0
    fs.delete(mark)
    copied = 0
    for path, file in _places(store, manifest):
        with fs.open_read(file.url) as source, fs.write_stream(fs.join(place, path)) as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)
        if target.written.digest != file.digest:
            raise StoreError(
                f"{file.path} does not have its recorded digest",
                where=file.url,
                hint="the file is damaged: rerun its step",
            )
        copied += 1
    fs.replace(mark, record)
    return copied


def _places(store: Store, manifest: Manifest) -> Iterator[tuple[str, FileRef]]:
    contents = store.contents(manifest)
    yield from ((file.path, file) for file in contents.files)
    for number, shard in enumerate(contents.shards):
        yield from ((f"shards/{number:05d}/{file.path}", file) for file in shard.files)
