"""Many results at once: what planning asks of a store that answers late."""

from collections.abc import Mapping, Sequence
from typing import Any

from marin import fs
from marin.store import layout, manifest, records
from marin.store.manifest import Manifest
from marin.store.store import Store


def recipes(store: Store, manifests: Sequence[Manifest]) -> dict[str, Mapping[str, Any]]:  # Any: JSON
    """Return the recipe of each result by fingerprint, without those that cannot be believed."""
    urls = {fs.join(store.artifact_url(each), "recipe.json"): each for each in manifests}
    stored = fs.read_many(urls)
    found = {urls[url].fingerprint: records.decode(data, "recipe", where=url) for url, data in stored.items()}
    return {key: record["recipe"] for key, record in found.items() if record and record.get("fingerprint") == key}


def prefixes(store: Store, step: str) -> list[str]:
    """Return the first 16 digits of every fingerprint that was ever begun for a step in this store."""
    return fs.list_folder(fs.join(layout.steps_folder(store.url), step))


def results(store: Store, step: str, found: Sequence[str]) -> list[Manifest]:
    """Return what is committed under these first digits, without records that cannot be believed."""
    urls = [fs.join(store.artifact_folder(step, prefix), "manifest.json") for prefix in found]
    decoded = (manifest.decode(data, where=url, root=store.url) for url, data in fs.read_many(urls).items())
    return [each for each in decoded if each is not None]
