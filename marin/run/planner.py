"""Planning against a store: what is known is asked in bulk, nothing is written, nothing is started.

It imports neither Ray nor torch. The newest runs tell which results a plan will probably ask for, so that they are read
at once, however deep the plan is; what a run says is only a guess where to look, the manifests are the truth.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marin.fs.pins import default_memo, pin
from marin.graph.files import FileRef
from marin.graph.nearest import Earlier
from marin.graph.produced import Produced
from marin.graph.recipe import Accepted
from marin.store import Manifest, Store, bulk
from marin.store.blessed import accepted, blessings
from marin.store.former_results import former_of
from marin.store.layout import PREFIX_HEX

_RUNS = 8
"""Newest runs that are asked."""
_EARLIER = 256
"""Earlier results of a step that are compared."""


class StoreCatalogue:
    """The store as a plan sees it: results by fingerprint, and earlier results of a step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._earlier: dict[str, Earlier] = {}

    @functools.cached_property
    def accepted(self) -> Accepted:
        """What was blessed in this store."""
        return accepted(blessings(self._store.url))

    @functools.cached_property
    def _runs(self) -> list[Mapping[str, Any]]:  # Any: JSON
        read = (self._store.read_run(run) for run in self._store.runs()[:_RUNS])
        return [record for record in read if record is not None]

    @functools.cached_property
    def _ahead(self) -> Mapping[str, Produced]:
        """What the newest run with results made or met, read at once."""
        for record in self._runs:
            keys = [(step["step"], step["fingerprint"]) for step in record.get("steps", ()) if step.get("digest")]
            if keys:
                return found_in(self._store, keys)
        return {}

    def find(self, keys: Sequence[tuple[str, str]]) -> Mapping[str, Produced]:
        """Return what is committed and whose files are there, by fingerprint."""
        asked = [key for key in keys if key[1] not in self._ahead]
        found = found_in(self._store, asked) if asked else {}
        return {key: self._ahead.get(key) or found[key] for _, key in keys if key in self._ahead or key in found}

    def earlier(self, step_name: str) -> Earlier:
        """Return earlier results of a step, the newest runs' first; read once for each step name."""
        if step_name not in self._earlier:
            known = dict.fromkeys(self._known(step_name))
            manifests = bulk.results(self._store, step_name, list(known)[:_EARLIER])
            manifests.sort(key=lambda each: each.finished, reverse=True)
            recipes = bulk.recipes(self._store, manifests)
            entries = [(recipes[each.fingerprint], produced(each)) for each in manifests if each.fingerprint in recipes]
            self._earlier[step_name] = Earlier(entries)
        return self._earlier[step_name]

    def _known(self, step_name: str) -> Iterator[str]:
        """Yield first digits of results of a step: those of the newest runs, then whatever a listing shows."""
        for record in self._runs:
            for step in record.get("steps", ()):
                if step.get("step") == step_name and step.get("digest"):
                    yield step["fingerprint"][:PREFIX_HEX]
        yield from sorted(self._begun(step_name))

    def taken_away(self, step_name: str, fingerprint: str) -> str | None:
        """Return who invalidated a result, when and why; empty if it is gone otherwise, None if it never was."""
        if fingerprint[:PREFIX_HEX] not in self._begun(step_name):
            return None
        former = former_of(self._store.url, step_name, fingerprint)
        if former is not None:
            reason = f": {former.reason}" if former.reason else ""
            return f"invalidated by {former.user} at {former.at[:16].replace('T', ' ')}{reason}"
        return "" if self._store.recipe(step_name, fingerprint) is not None else None

    @functools.cache  # noqa: B019  a catalogue lives as long as its plan
    def _begun(self, step_name: str) -> frozenset[str]:
        return frozenset(bulk.prefixes(self._store, step_name))

    def definitions(self, step_name: str, fingerprint: str) -> Mapping[str, str]:
        """Return the definitions that made a result and their digests; empty when they were not kept."""
        recipe: Any = self._store.recipe(step_name, fingerprint) or {}  # Any: JSON
        return dict(recipe.get("definitions", {}))


def found_in(store: Store, keys: Sequence[tuple[str, str]]) -> dict[str, Produced]:
    """Return what is committed under these (step name, fingerprint), here or upstream, and whose files are there."""
    return {fingerprint: produced(manifest) for fingerprint, manifest in store.hits(keys).items()}


def recalled_in(store: Store, keys: Sequence[tuple[str, str]]) -> dict[str, Produced]:
    """Return what `found_in` does, and what `marin gc` has unlisted and not yet deleted: that is listed again."""
    return {fingerprint: produced(manifest) for fingerprint, manifest in store.recall(keys).items()}


def produced(manifest: Manifest) -> Produced:
    """Return what a plan shows of a result."""
    return Produced(
        run=manifest.run,
        at=manifest.finished,
        user=manifest.producer.user,
        commit=manifest.producer.commit,
        digest=manifest.digest,
        bytes=manifest.size,
        seconds=manifest.seconds,
        name=manifest.name,
        fingerprint=manifest.fingerprint,
        attempt=manifest.attempt,
        metrics=manifest.metrics,
        source=manifest.source,
        store=manifest.root,
    )


def pins(patterns: tuple[str, ...]) -> tuple[FileRef, ...]:
    """Return the external files by content; digests of local files are remembered in the user's cache folder."""
    return pin(patterns, memo=default_memo())
