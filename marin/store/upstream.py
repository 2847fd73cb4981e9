"""Files of upstream stores that a record of this store is about to name: they are copied here first.

Invariant: a record names only files below its own store's root, so that a store can be moved, cleaned and trusted by
itself. A copy whose bytes do not have the recorded digest is refused, and each file is copied once an attempt.
"""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping

from marin import fs
from marin.base.errors import StoreError
from marin.graph.files import Contents, FileRef
from marin.store import manifest
from marin.store.presence import THREADS
from marin.store.store import Store

_COPY_BYTES = 4 << 20


def own_contents(store: Store, contents: Contents, folder: str) -> Contents:
    """Return the contents with every file in this store, those of upstream stores copied to `folder/copied`.

    Raises StoreError for a file that lies in none of the stores, and for one whose bytes are not what was recorded.
    """
    foreign = {file.url: file for file in _all_files(contents) if not file.url.startswith(f"{store.url}/")}
    if not foreign:
        return contents
    for file in foreign.values():
        if not any(file.url.startswith(f"{upstream.url}/") for upstream in store.upstreams):
            raise StoreError(
                f"the artifact names `{file.path}`, which lies outside of the store",
                where=file.url,
                hint="write files to `ctx.output`, and return files of parents and of `ctx.map` only",
            )
    urls = fs.ask_each(lambda url: _copy(foreign[url], folder), foreign, threads=THREADS)
    return dataclasses.replace(
        contents,
        files=tuple(_moved(file, urls) for file in contents.files),
        shards=tuple(
            dataclasses.replace(shard, files=tuple(_moved(file, urls) for file in shard.files))
            for shard in contents.shards
        ),
    )


def unplaced_contents(store: Store, contents: Contents) -> Contents:
    """Return contents as a manifest records them: paths below the store's root."""
    return dataclasses.replace(
        contents,
        files=tuple(manifest.unplaced(store.url, file) for file in contents.files),
        shards=tuple(manifest.unplaced_shard(store.url, shard) for shard in contents.shards),
    )


def _all_files(contents: Contents) -> Iterator[FileRef]:
    yield from contents.files
    for shard in contents.shards:
        yield from shard.files


def _moved(file: FileRef, urls: Mapping[str, str]) -> FileRef:
    return dataclasses.replace(file, url=urls.get(file.url, file.url))


def _copy(file: FileRef, folder: str) -> str:
    """Copy a file and return where it is now; its digest keeps files of one path apart."""
    url = fs.join(folder, "copied", file.digest[:16], file.path)
    with fs.open_read(file.url) as source, fs.write_stream(url) as target:
        shutil.copyfileobj(source, target, _COPY_BYTES)
    if target.written != (file.size, file.digest):
        fs.delete(url)
        raise StoreError(
            f"`{file.path}` does not have the digest that was recorded when it was made: the file is damaged",
            where=file.url,
            hint="tell whoever keeps that store, and run again without --read-from for it",
        )
    return url
