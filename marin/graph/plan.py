"""Plan: the steps in order, each with a state and a cause; a pure value.

Invariant: a plan is a function of the steps, the pinned inputs and what the catalogue knows. It is made level by
level: as soon as a step's parents are all committed, its fingerprint is known and looked up, one bulk question a
level. Below a step that must run, nothing is certain, because its output may turn out the same (early cutoff).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from marin.base.json import Json
from marin.graph.code.closure import CodeDigest, code_at_rest
from marin.graph.code.declared import SourceDigest
from marin.graph.drift import Drift, OnDrift, changed_definitions, has_drifted
from marin.graph.explain import Change
from marin.graph.files import FileRef
from marin.graph.nearest import Earlier
from marin.graph.produced import Produced
from marin.graph.recipe import Accepted, Recipe, recipe_of, source_of
from marin.graph.step import Step, dependencies
from marin.graph.topology import Named, Pins, levels, order

CauseKind = Literal["new", "config", "code", "version", "input", "parent", "missing", "drift"]
PlanState = Literal["cached", "run", "unknown"]


class Catalogue(Protocol):
    """What a store knows, asked in bulk."""

    @property
    def accepted(self) -> Accepted:
        """What was blessed."""

    def find(self, keys: Sequence[tuple[str, str]]) -> Mapping[str, Produced]:
        """Return what is committed under these (step name, fingerprint), by fingerprint."""

    def earlier(self, step_name: str) -> Earlier:
        """Return earlier results of a step."""

    def taken_away(self, step_name: str, fingerprint: str) -> str | None:
        """Return who took a result away, when and why; empty if it was there and is not, None if it never was."""

    def definitions(self, step_name: str, fingerprint: str) -> Mapping[str, str]:
        """Return the definitions that made a result and their digests; empty when they were not kept."""


@dataclass(frozen=True)
class Cause:
    """Why a step will run, or cannot be known to be cached yet."""

    kind: CauseKind
    changes: tuple[Change, ...] = ()
    nearest: Produced | None = None
    """The earlier result that differs least."""

    def to_json(self) -> dict[str, Json]:
        """Return the object that `--json` shows."""
        record: dict[str, Json] = {"kind": self.kind, "changes": [change.to_json() for change in self.changes]}
        return record | ({"nearest": self.nearest.to_json()} if self.nearest else {})


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a plan."""

    name: str
    step: Step[Any]
    recipe: str
    """Fingerprint of the static recipe."""
    fingerprint: str | None
    """Of the resolved recipe; None while a parent must run first."""
    state: PlanState
    cause: Cause | None
    produced: Produced | None
    parents: tuple[str, ...]
    pins: tuple[FileRef, ...]

    @property
    def parent_fields(self) -> tuple[tuple[str, str], ...]:
        """The field that holds each parent, and the parent's name in the plan."""
        return tuple((path, name) for (path, _), name in zip(dependencies(self.step), self.parents, strict=True))


@dataclass(frozen=True)
class Plan:
    """The steps in topological order."""

    steps: tuple[PlannedStep, ...]
    drift: tuple[Drift, ...] = ()
    on_drift: OnDrift = "warn"
    accepted: Accepted = field(default_factory=dict)

    def step(self, name: str) -> PlannedStep:
        """Return the step called `name`; KeyError if there is none."""
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> dict[str, PlannedStep]:
        return {planned.name: planned for planned in self.steps}


@code_at_rest()
def make_plan(steps: Sequence[Step[Any]], catalogue: Catalogue, pins: Pins, on_drift: OnDrift = "warn") -> Plan:
    """Return the plan: what is cached, what must run and why; with `rerun`, what has drifted runs again."""
    planner = _Planner(catalogue, on_drift)
    named_steps = order(steps, pins, catalogue.accepted)
    for level in levels(named_steps):
        planner.add(level)
    planned = tuple(planner.planned[named.name] for named in named_steps)
    return Plan(planned, tuple(planner.drift), on_drift, catalogue.accepted)


def resolve(step: Step[Any], digests: Sequence[str], pins: Sequence[FileRef], accepted: Accepted) -> Recipe:
    """Return the resolved recipe; `digests` are the parents' output digests in the order of `dependencies(step)`."""
    by_parent = {id(parent): digest for (_, parent), digest in zip(dependencies(step), digests, strict=True)}
    return recipe_of(step, lambda parent: by_parent[id(parent)], pins, accepted)


class _Planner:
    """Plans level after level."""

    def __init__(self, catalogue: Catalogue, on_drift: OnDrift) -> None:
        self.planned: dict[str, PlannedStep] = {}
        self.drift: list[Drift] = []
        self._catalogue = catalogue
        self._on_drift = on_drift
        self._sources: dict[type, CodeDigest | SourceDigest | None] = {}

    def add(self, level: Sequence[Named]) -> None:
        resolved = {named.name: self._resolved(named) for named in level}
        keys = [(named.step.step_name(), recipe.fingerprint) for named in level if (recipe := resolved[named.name])]
        found = self._catalogue.find(keys) if keys else {}
        for named in level:
            recipe = resolved[named.name]
            self.planned[named.name] = self._planned(named, recipe, found.get(recipe.fingerprint) if recipe else None)

    def _resolved(self, named: Named) -> Recipe | None:
        results = [self.planned[name].produced for name in named.parents]
        digests = [produced.digest for produced in results if produced is not None]
        if len(digests) < len(results):
            return None
        return resolve(named.step, digests, named.pins, self._catalogue.accepted)

    def _planned(self, named: Named, resolved: Recipe | None, produced: Produced | None) -> PlannedStep:
        state: PlanState = "cached"
        cause = None
        if resolved is None:
            state, cause = "unknown", self._cause_above(named)
        elif produced is None:
            state, cause = "run", self._cause(named, resolved)
        elif drift := self._drift_of(named, produced):
            self.drift.append(drift)
            if self._on_drift == "rerun":
                state, cause, produced = "run", Cause("drift", drift.changes, produced), None
        return PlannedStep(
            name=named.name,
            step=named.step,
            recipe=named.recipe,
            fingerprint=resolved.fingerprint if resolved else None,
            state=state,
            cause=cause,
            produced=produced,
            parents=named.parents,
            pins=named.pins,
        )

    def _drift_of(self, named: Named, produced: Produced) -> Drift | None:
        """Return how the source of a step with a declared version differs from what made a result, if it does."""
        step = named.step
        if step.version is None or produced.source is None:
            return None
        if type(step) not in self._sources:  # once a plan: looking whether files have changed takes as long as a lookup
            self._sources[type(step)] = source_of(step)
        source = self._sources[type(step)]
        if source is None or not has_drifted(produced.source, source.digest, self._catalogue.accepted):
            return None
        before = self._catalogue.definitions(step.step_name(), produced.fingerprint)
        found = changed_definitions(before, source.definitions)
        return Drift(named.name, step.step_name(), step.version, produced.source, source.digest, found)

    def _cause_above(self, named: Named) -> Cause:
        """Name the parents that must run first, then the step's own changes, which are known already."""
        missing = [name for name in dict.fromkeys(named.parents) if self.planned[name].produced is None]
        paths = {name: path for (path, _), name in zip(dependencies(named.step), named.parents, strict=True)}
        above = tuple(Change("parent", paths[name], None, name) for name in missing)
        above_recipes = [self.planned[name].recipe for name in named.parents]
        static = resolve(named.step, above_recipes, named.pins, self._catalogue.accepted)
        near = self._catalogue.earlier(named.step.step_name()).nearest(static.record, name=named.name)
        own = tuple(change for change in near.changes if change.kind != "parent") if near else ()
        return Cause("parent", (*above, *own), near.produced if near and own else None)

    def _cause(self, named: Named, resolved: Recipe) -> Cause:
        taken = self._catalogue.taken_away(named.step.step_name(), resolved.fingerprint)
        if taken is not None:
            return Cause("missing", (Change("missing", named.name, None, taken),) if taken else ())
        near = self._catalogue.earlier(named.step.step_name()).nearest(resolved.record, name=named.name)
        if near is None:
            return Cause("new")
        if not near.changes:
            return Cause("missing", (), near.produced)
        names = {path: name for (path, _), name in zip(dependencies(named.step), named.parents, strict=True)}
        shown = tuple(
            Change(change.kind, change.path, change.old, f"{change.new} ({names[change.path]})")
            if change.kind == "parent" and change.path in names
            else change
            for change in near.changes
        )
        kinds = {change.kind for change in shown}
        ranked: tuple[CauseKind, ...] = ("config", "code", "version", "input", "parent")
        return Cause(next(kind for kind in ranked if kind in kinds), shown, near.produced)
