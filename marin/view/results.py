"""Several results of one step: what each differs in from the one made before it.

Pure but for the recipes, which are read at once. Nothing is said of a result whose recipe, or that of the one before
it, is gone.
"""

from collections.abc import Sequence
from itertools import pairwise

from marin.graph.explain import Change, changes
from marin.store import Manifest, Store, bulk


def changes_in_turn(store: Store, manifests: Sequence[Manifest]) -> dict[str, tuple[Change, ...]]:
    """Return, by fingerprint, how each result's recipe differs from that of the one of its step made before it."""
    made: dict[str, list[Manifest]] = {}
    for each in sorted(manifests, key=lambda each: each.moment):
        made.setdefault(each.step, []).append(each)
    recipes = bulk.recipes(store, [each for results in made.values() if len(results) > 1 for each in results])
    return {
        new.fingerprint: changes(recipes[old.fingerprint], recipes[new.fingerprint])
        for results in made.values()
        for old, new in pairwise(results)
        if old.fingerprint in recipes and new.fingerprint in recipes
    }


def several_of_a_step(manifests: Sequence[Manifest]) -> bool:
    """Whether any step has more than one result among these."""
    return len({each.step for each in manifests}) < len(manifests)
