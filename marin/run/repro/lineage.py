"""Lineage: every result that an artifact was made from, back to those that read no other.

It is walked through the parents that manifests record, in this store and those it reads from. Invariant: parents come
before what read them, in the order in which a plan of the same steps has them.
"""

from collections.abc import Mapping

from marin.base.errors import StoreError
from marin.store import Manifest, Store


def lineage(store: Store, wanted: Manifest) -> list[Manifest]:
    """Return the manifests that led to one, parents first, itself last; StoreError when a record is gone."""
    return _parents_first(wanted, _records(store, wanted))


def _records(store: Store, wanted: Manifest) -> Mapping[str, Manifest]:
    """Return all records above and including one, by fingerprint; one bulk question a generation."""
    found = {wanted.fingerprint: wanted}
    generation = [wanted]
    while generation:
        asked = {
            parent.fingerprint: (parent, each)
            for each in generation
            for parent in each.parents
            if parent.fingerprint not in found
        }
        answers = store.find([(parent.step, parent.fingerprint) for parent, _ in asked.values()])
        for fingerprint, (parent, child) in asked.items():
            if fingerprint not in answers:
                raise StoreError(
                    f"the record of {parent.step} {fingerprint[:8]}, from which {child.step} was made, is gone",
                    where=store.artifact_folder(parent.step, fingerprint),
                    hint="name the store that still has it with --read-from",
                )
        found.update(answers)
        generation = list(answers.values())
    return found


def _parents_first(wanted: Manifest, records: Mapping[str, Manifest]) -> list[Manifest]:
    ordered: dict[str, Manifest] = {}
    begun: set[str] = set()  # a record that claims to be above itself is met once
    stack = [(wanted, False)]  # no recursion: a chain may be thousands long
    while stack:
        each, parents_done = stack.pop()
        if parents_done:
            ordered[each.fingerprint] = each
        elif each.fingerprint not in begun:
            begun.add(each.fingerprint)
            stack.append((each, True))
            stack.extend((records[parent.fingerprint], False) for parent in reversed(each.parents))
    return list(ordered.values())
