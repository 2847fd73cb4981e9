"""First causes: what differs between two results, followed through parents to the fields and lines that began it.

Invariant: a difference of a parent is told by what made the parent differ, under the path of fields that leads there;
it stands for itself only where the records below are gone. Nothing is told twice.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from marin.graph.drift import Drift
from marin.graph.explain import Change, changes
from marin.graph.plan import Plan, PlannedStep
from marin.graph.recipe import source_of
from marin.store import Manifest, Store
from marin.store.code import read_definitions

_CONTEXT_LINES = 1


class Key(NamedTuple):
    """Which result: its step's name and fingerprint."""

    step: str
    fingerprint: str


class Causes:
    """Explains results of one store; remembers what it has told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[tuple[Key, Key]] = set()

    def between(self, old: Key, new: Key, path: str = "") -> list[Change]:
        """Return what made two results of one step differ, at the first places where their lineages do."""
        if (old, new) in self._told or old == new:
            return []
        self._told.add((old, new))
        records = self._recipe(old), self._recipe(new)
        before, after = self._manifest(old), self._manifest(new)
        if not all(records) or before is None or after is None:
            return [Change("missing", path or "recipe", old.fingerprint[:8], new.fingerprint[:8])]
        texts = [self._texts(before), self._texts(after)]
        return list(self._traced(changes(*records), path, before, _parents(after), texts))

    def planned(self, plan: Plan, step: PlannedStep, path: str = "") -> list[Change]:
        """Return why a planned step would run, at the first places; nothing for what is cached."""
        if step.cause is None:
            return [change for drift in plan.drift if drift.name == step.name for change in self.drifted(drift, step)]
        if step.cause.kind == "new":
            return [Change("missing", path, None, f"no earlier result of {step.name}")] if path else []
        if step.cause.kind == "missing":
            new = step.cause.changes[0].new if step.cause.changes else None
            return [Change("missing", path or step.name, None, new)]
        nearest = step.cause.nearest
        waits = [each for each in step.cause.changes if each.kind == "parent" and each.old is None]
        own = [each for each in step.cause.changes if each not in waits]
        found = [each for wait in waits for each in self._above(plan, wait, path)]
        manifest = self._manifest(Key(step.step.step_name(), nearest.fingerprint)) if nearest else None
        texts = [self._texts(manifest), _texts_now(step)]
        return found + list(self._traced(own, path, manifest, _planned_parents(plan, step), texts))

    def drifted(self, drift: Drift, step: PlannedStep) -> list[Change]:
        """Return the definitions whose source has changed under a declared version, with their lines."""
        before, after = read_definitions(self._store.url, drift.recorded) or {}, _texts_now(step)
        return [replace(change, lines=_lines(change.path, before, after)) for change in drift.changes]

    def _above(self, plan: Plan, wait: Change, path: str) -> list[Change]:
        parent = plan.step(str(wait.new))
        below = _joined(path, wait.path)
        return self.planned(plan, parent, below) or [Change("parent", below, None, parent.name)]

    def _traced(
        self,
        found: Sequence[Change],
        path: str,
        old: Manifest | None,
        parents: Mapping[str, Key],
        texts: list[Mapping[str, str]],
    ) -> Iterator[Change]:
        before = _parents(old) if old is not None else {}
        for change in found:
            if change.kind == "parent" and change.path in before and change.path in parents:
                below = self.between(before[change.path], parents[change.path], _joined(path, change.path))
                yield from below or [replace(change, path=_joined(path, change.path))]
            elif change.kind == "code":
                yield replace(change, path=_joined(path, change.path), lines=_lines(change.path, *texts))
            else:
                yield replace(change, path=_joined(path, change.path))

    def _recipe(self, key: Key) -> Any:  # Any: JSON
        return self._store.recipe(key.step, key.fingerprint)

    def _manifest(self, key: Key) -> Manifest | None:
        return self._store.find([key]).get(key.fingerprint)

    def _texts(self, manifest: Manifest | None) -> Mapping[str, str]:
        if manifest is None or manifest.source is None:
            return {}
        return read_definitions(manifest.root or self._store.url, manifest.source) or {}


def _parents(manifest: Manifest) -> dict[str, Key]:
    return {parent.path: Key(parent.step, parent.fingerprint) for parent in manifest.parents}


def _planned_parents(plan: Plan, step: PlannedStep) -> dict[str, Key]:
    by_name = {each.name: each for each in plan.steps}
    found = {}
    for path, name in step.parent_fields:
        fingerprint = by_name[name].fingerprint
        if fingerprint is not None:
            found[path] = Key(by_name[name].step.step_name(), fingerprint)
    return found


def _texts_now(step: PlannedStep) -> Mapping[str, str]:
    source = source_of(step.step)
    return source.texts if source is not None else {}


def _lines(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines of a definition that changed, each after `-` or `+`; none when a text was not kept."""
    if name not in old and name not in new:
        return ()
    before, after = old.get(name, "").splitlines(), new.get(name, "").splitlines()
    compared = difflib.unified_diff(before, after, lineterm="", n=_CONTEXT_LINES)
    return tuple(line for line in compared if not line.startswith(("---", "+++", "@@")))


def _joined(path: str, below: str) -> str:
    return f"{path} > {below}" if path else below
