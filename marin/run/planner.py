"""Planning against a store: what is known is asked in bulk, nothing is written, nothing is started.

It imports neither Ray nor torch.
"""

from collections.abc import Mapping, Sequence

from marin.base.json import Json
from marin.fs.pins import default_memo, pin
from marin.graph.files import FileRef
from marin.graph.plan import Produced
from marin.store import Manifest, Store


class StoreCatalogue:
    """The store as a plan sees it: results by fingerprint, and earlier results of a step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nearest: dict[str, list[tuple[Json, Produced]]] = {}

    def find(self, keys: Sequence[tuple[str, str]]) -> Mapping[str, Produced]:
        """Return what is committed and whose files are there, by fingerprint."""
        found = self._store.find(keys)
        return {key: produced(manifest) for key, manifest in found.items() if self._store.present(manifest)}

    def nearest(self, step_name: str) -> list[tuple[Json, Produced]]:
        """Return recipes and results of earlier runs of the step, newest first; read once for each step name."""
        if step_name not in self._nearest:
            manifests = self._store.manifests(step_name)
            recipes = [(self._store.recipe(step_name, manifest.fingerprint), manifest) for manifest in manifests]
            self._nearest[step_name] = [(recipe, produced(m)) for recipe, m in recipes if recipe is not None]
        return self._nearest[step_name]


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
    )


def pins(patterns: tuple[str, ...]) -> tuple[FileRef, ...]:
    """Return the external files by content; digests of local files are remembered in the user's cache folder."""
    return pin(patterns, memo=default_memo())
