"""`.at(url)`: a committed artifact copied to a place of the user's choice, whole or not at all.

A worker that commits publishes to object storage, so no bytes pass through the driver. The driver does the rest at the
end of its run: what was cached, what could not be copied, and folders, which are those of the machine it runs on.

The files come first and `manifest.json` last; a place that has that very manifest is left alone, so that a rerun copies
nothing. Another artifact at the place is replaced: it is a view of the store, and the store keeps both.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from marin import fs
from marin.base.errors import ConfigurationError, StoreError
from marin.graph.files import FileRef
from marin.graph.step import Step
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


def place_of(step: Step[Any]) -> str | None:
    """Return where a step is to be published, as every process of this machine understands it."""
    return fs.normalise(step.placed.url) if step.placed.url is not None else None


def is_shared(step: Step[Any]) -> bool:
    """Whether every machine sees the place at which a step is published."""
    place = place_of(step)
    return place is not None and not fs.is_local(place)


def check_places(steps: Sequence[Step[Any]]) -> None:
    """Raise ConfigurationError for a place in the cluster's copy of a working tree, which ends with the run."""
    for step in steps:
        place = step.placed.url
        if place is not None and fs.is_local(place) and not os.path.isabs(os.path.expanduser(place)):
            raise ConfigurationError(
                f"{place} would be a folder in the cluster's copy of the working tree, which goes when the run ends",
                where=f"step {step.placed.name or step.step_name()}, .at({place!r})",
                hint="give .at() a URL such as s3://..., or the full path of a folder that the cluster's head sees",
            )


def _places(store: Store, manifest: Manifest) -> Iterator[tuple[str, FileRef]]:
    contents = store.contents(manifest)
    yield from ((file.path, file) for file in contents.files)
    for number, shard in enumerate(contents.shards):
        yield from ((f"shards/{number:05d}/{file.path}", file) for file in shard.files)
