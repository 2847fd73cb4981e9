"""Artifacts of a store by what a person types: a step, the start of a hash, a path, a name in a run."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from marin import fs
from marin.base.errors import ConfigurationError, StoreError, did_you_mean
from marin.graph.artifact import Value
from marin.store import Manifest, Store
from marin.store.blessed import blessings
from marin.store.pins import pins

SHORTEST_PREFIX = 4
_VALUE_BYTES = 100_000
_VALUE_CHARACTERS = 200
_SHOWN = 10


def artifact_url(store: Store, manifest: Manifest) -> str:
    """Return the folder of an artifact, in the store that holds it."""
    return store.artifact_url(manifest)


def find_artifacts(store: Store, text: str) -> list[Manifest]:
    """Return the artifacts that `text` names, newest first; ConfigurationError with a near name when there is none.

    A store that is read from is asked for what the one before it has nothing of.
    """
    known: set[str] = set()
    for each in (store, *store.upstreams):
        manifests = each.manifests()
        if found := _called(each, manifests, text):
            return found
        known |= {manifest.step for manifest in manifests}
    raise _nothing_called(text, store, known)


def list_artifacts(store: Store, text: str | None = None) -> list[Manifest]:
    """Return what the store and those it reads from hold, newest first; with `text`, as much as it names anywhere."""
    found: dict[tuple[str, str], Manifest] = {}
    known: set[str] = set()
    for each in (store, *store.upstreams):
        manifests = each.manifests()
        known |= {manifest.step for manifest in manifests}
        for manifest in manifests if text is None else _called(each, manifests, text):
            found.setdefault((manifest.step, manifest.fingerprint), manifest)
    if text is not None and not found:
        raise _nothing_called(text, store, known)
    return sorted(found.values(), key=lambda each: each.moment, reverse=True)


def _called(store: Store, manifests: Sequence[Manifest], text: str) -> list[Manifest]:
    found = [manifest for manifest in manifests if is_called(store, manifest, text)]
    return found or _pinned_as(store, manifests, text) or _named_in_a_run(store, manifests, text)


def _nothing_called(text: str, store: Store, known: Iterable[str]) -> ConfigurationError:
    names = sorted(known)
    hint = did_you_mean(text, names) or (f"there are {', '.join(names)}" if names else "the store is empty")
    return ConfigurationError(f"the store has nothing called {text!r}", where=store.url, hint=hint)


def is_called(store: Store, manifest: Manifest, text: str) -> bool:
    """Whether a text is an artifact's step, the start of its fingerprint or digest, or its path."""
    url = fs.normalise(text)
    return (
        text == manifest.step
        or (len(text) >= SHORTEST_PREFIX and _starts(manifest, text.lower()))
        or url == artifact_url(store, manifest)
        or url == f"{artifact_url(store, manifest)}/manifest.json"
    )


def find_artifact(store: Store, text: str) -> Manifest:
    """Return the one artifact that `text` names; ConfigurationError with the candidates when there are several."""
    return only(store, text, find_artifacts(store, text))


def only(store: Store, text: str, found: Sequence[Manifest]) -> Manifest:
    """Return the one artifact that was found; ConfigurationError with the candidates when there are several."""
    if len(found) > 1:
        shown = [f"{each.step} {each.fingerprint[:12]} of {each.finished[:16]}" for each in found[:_SHOWN]]
        more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise ConfigurationError(
            f"{text!r} names {len(found)} artifacts",
            where="\n".join([*shown, *more]),
            hint=f"name one by the start of its fingerprint, such as {found[0].fingerprint[:12]}",
        )
    return found[0]


def small_value(store: Store, manifest: Manifest) -> str | None:
    """Return a Value as text, cut where it is long; None for other artifacts and for one that cannot be read."""
    if manifest.artifact != Value.__name__ or manifest.size > _VALUE_BYTES:
        return None
    try:
        shown = json.dumps(Value[Any](store.contents(manifest)).value, ensure_ascii=False)
    except (StoreError, ValueError, KeyError):
        return None
    return shown if len(shown) <= _VALUE_CHARACTERS else f"{shown[:_VALUE_CHARACTERS]}..."


def _starts(manifest: Manifest, prefix: str) -> bool:
    return manifest.fingerprint.startswith(prefix) or manifest.digest.startswith(prefix)


def _pinned_as(store: Store, manifests: Sequence[Manifest], name: str) -> list[Manifest]:
    keys = {(pin.step, pin.fingerprint) for pin in pins(store.url) if pin.name == name}
    return [manifest for manifest in manifests if (manifest.step, manifest.fingerprint) in keys]


def _named_in_a_run(store: Store, manifests: Sequence[Manifest], name: str) -> list[Manifest]:
    """Return the artifact of the step that the newest run with such a step called `name`, such as `split/train`."""
    by_fingerprint = {manifest.fingerprint: manifest for manifest in manifests}
    for run in store.runs():
        for step in (store.read_run(run) or {}).get("steps") or ():
            if step.get("name") == name and step.get("fingerprint") in by_fingerprint:
                return [by_fingerprint[step["fingerprint"]]]
    return []


def describe(store: Store, manifest: Manifest) -> dict[str, Any]:
    """Return what `marin show` says of an artifact."""
    return {
        "step": manifest.step,
        "artifact": artifact_url(store, manifest),
        "type": manifest.artifact,
        "fingerprint": manifest.fingerprint,
        "digest": manifest.digest,
        "bytes": manifest.size,
        "shards": len(manifest.shards),
        "files": [{"path": file.path, "size": file.size, "digest": file.digest} for file in manifest.files],
        "metrics": dict(manifest.metrics),
        "meta": manifest.meta,
        "produced": {
            "run": manifest.run,
            "attempt": manifest.attempt,
            "user": manifest.producer.user,
            "host": manifest.producer.host,
            "commit": manifest.producer.commit,
            "at": manifest.finished,
            "seconds": manifest.seconds,
        },
        "recipe": store.recipe(manifest.step, manifest.fingerprint),
        "source": manifest.source,
        "parents": [dataclasses.asdict(parent) for parent in manifest.parents],
        "pinned": [
            dataclasses.asdict(pin)
            for pin in pins(manifest.root or store.url)
            if (pin.step, pin.fingerprint) == (manifest.step, manifest.fingerprint)
        ],
        "blessed": [each._asdict() for each in blessings(store.url, manifest.step) if each.before == manifest.source],
    }
