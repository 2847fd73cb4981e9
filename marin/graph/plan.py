"""Plan: the steps in order, each with a state and a cause; a pure value.

Invariant: a plan is a function of the steps, the pinned inputs and what the catalogue knows. It is made level by
level: as soon as a step's parents are all committed, its fingerprint is known and looked up, one bulk question a
level. Below a step that must run, nothing is certain, because its output may turn out the same (early cutoff).
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from marin.base.errors import ConfigurationError
from marin.base.json import Json
from marin.graph.explain import Change, changes
from marin.graph.files import FileRef
from marin.graph.recipe import Recipe, recipe_of
from marin.graph.step import Step, dependencies

CauseKind = Literal["new", "config", "code", "version", "input", "parent", "missing"]
PlanState = Literal["cached", "run", "unknown"]
Pins = Callable[[tuple[str, ...]], tuple[FileRef, ...]]
_ABSENT = object()
_COMPARED = 16


@dataclass(frozen=True)
class Produced:
    """A result that exists: who made it, when, from which commit, and what it is."""

    run: str
    at: str
    user: str
    commit: str | None
    digest: str
    bytes: int
    seconds: float

    def to_json(self) -> dict[str, Json]:
        """Return the object that `--json` shows."""
        return {"run": self.run, "at": self.at, "user": self.user, "commit": self.commit}


class Catalogue(Protocol):
    """What a store knows, asked in bulk."""

    def find(self, keys: Sequence[tuple[str, str]]) -> Mapping[str, Produced]:
        """Return what is committed under these (step name, fingerprint), by fingerprint."""

    def nearest(self, step_name: str) -> Sequence[tuple[Any, Produced]]:
        """Return recipe records and results of earlier runs of a step, newest first."""


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


@dataclass(frozen=True)
class Named:
    """A step with its unique name in a plan and its static recipe."""

    name: str
    step: Step[Any]
    recipe: Recipe
    pins: tuple[FileRef, ...]
    parents: tuple[str, ...]
    """Names in the order of `dependencies(step)`."""


@dataclass(frozen=True)
class PlannedStep:
    """One step of a plan."""

    name: str
    step: Step[Any]
    recipe: Recipe
    resolved: Recipe | None
    """None while a parent must run first."""
    state: PlanState
    cause: Cause | None
    produced: Produced | None
    parents: tuple[str, ...]
    pins: tuple[FileRef, ...]


@dataclass(frozen=True)
class Plan:
    """The steps in topological order."""

    steps: tuple[PlannedStep, ...]
    drift: tuple[Json, ...] = ()

    def step(self, name: str) -> PlannedStep:
        """Return the step called `name`; KeyError if there is none."""
        for planned in self.steps:
            if planned.name == name:
                return planned
        raise KeyError(name)


def order(steps: Sequence[Step[Any]], pins: Pins) -> tuple[Named, ...]:
    """Return all steps that are wanted or needed, each once, parents first, with unique names.

    Steps of equal recipes are one step. A name is `.named(...)`, else the step's own, numbered when it recurs.
    """
    known: dict[int, str] = {}
    found: dict[str, tuple[Step[Any], Recipe, tuple[FileRef, ...], tuple[str, ...]]] = {}
    for step in _parents_first(steps):
        parents = tuple(known[id(parent)] for _, parent in dependencies(step))
        pinned = pins(step.inputs()) if step.inputs() else ()
        recipe = recipe_of(step, lambda parent: known[id(parent)], pinned)
        known[id(step)] = recipe.fingerprint
        first = found.get(recipe.fingerprint)
        if first is None or (first[0].placed.name is None and step.placed.name is not None):
            found[recipe.fingerprint] = (step, recipe, pinned, parents)
    names = _names({fingerprint: entry[0] for fingerprint, entry in found.items()})
    return tuple(
        Named(names[fingerprint], step, recipe, pinned, tuple(names[parent] for parent in parents))
        for fingerprint, (step, recipe, pinned, parents) in found.items()
    )


def _parents_first(steps: Sequence[Step[Any]]) -> Iterator[Step[Any]]:
    """Yield every step object once, after its parents, without recursion: chains may be thousands long."""
    done: set[int] = set()
    stack = [(step, False) for step in reversed(steps)]
    while stack:
        step, parents_done = stack.pop()
        if id(step) in done:
            continue
        if parents_done:
            done.add(id(step))
            yield step
        else:
            stack.append((step, True))
            stack.extend((parent, False) for _, parent in reversed(list(dependencies(step))))


def _names(steps: Mapping[str, Step[Any]]) -> dict[str, str]:
    names: dict[str, str] = {}
    taken = Counter(step.placed.name for step in steps.values() if step.placed.name)
    for name, count in taken.items():
        if count > 1:
            raise ConfigurationError(
                f"{count} different steps are named {name!r}", where=str(name), hint="give each its own .named(...)"
            )
    numbers: Counter[str] = Counter()

    def numbered(own: str) -> str:
        numbers[own] += 1
        return own if numbers[own] == 1 else f"{own}-{numbers[own]}"

    for fingerprint, step in steps.items():
        name = step.placed.name or numbered(step.step_name())
        while step.placed.name is None and name in taken:
            name = numbered(step.step_name())
        names[fingerprint] = name
    return names


def make_plan(steps: Sequence[Step[Any]], catalogue: Catalogue, pins: Pins) -> Plan:
    """Return the plan: what is cached, what must run and why."""
    named_steps = order(steps, pins)
    planned: dict[str, PlannedStep] = {}
    for level in _levels(named_steps):
        resolved = {named.name: _resolved(named, planned) for named in level}
        keys = [(named.step.step_name(), recipe.fingerprint) for named in level if (recipe := resolved[named.name])]
        found = catalogue.find(keys) if keys else {}
        for named in level:
            planned[named.name] = _planned(named, resolved[named.name], found, planned, catalogue)
    return Plan(tuple(planned[named.name] for named in named_steps))


def _levels(named_steps: Sequence[Named]) -> list[list[Named]]:
    """Group the steps, parents first, by the length of the longest chain above them."""
    depths: dict[str, int] = {}
    levels: list[list[Named]] = []
    for named in named_steps:
        depth = depths[named.name] = 1 + max((depths[parent] for parent in named.parents), default=-1)
        levels.extend([] for _ in range(depth + 1 - len(levels)))
        levels[depth].append(named)
    return levels


def resolve(step: Step[Any], digests: Sequence[str], pins: Sequence[FileRef]) -> Recipe:
    """Return the resolved recipe; `digests` are the parents' output digests in the order of `dependencies(step)`."""
    by_parent = {id(parent): digest for (_, parent), digest in zip(dependencies(step), digests, strict=True)}
    return recipe_of(step, lambda parent: by_parent[id(parent)], pins)


def _resolved(named: Named, planned: Mapping[str, PlannedStep]) -> Recipe | None:
    results = [planned[name].produced for name in named.parents]
    digests = [produced.digest for produced in results if produced is not None]
    return resolve(named.step, digests, named.pins) if len(digests) == len(results) else None


def _planned(
    named: Named,
    resolved: Recipe | None,
    found: Mapping[str, Produced],
    planned: Mapping[str, PlannedStep],
    catalogue: Catalogue,
) -> PlannedStep:
    produced = found.get(resolved.fingerprint) if resolved else None
    state: PlanState = "cached"
    cause = None
    if resolved is None:
        state, cause = "unknown", _cause_above(named, planned)
    elif produced is None:
        state, cause = "run", _cause(named, resolved, planned, catalogue)
    return PlannedStep(
        named.name, named.step, named.recipe, resolved, state, cause, produced, named.parents, named.pins
    )


def _cause_above(named: Named, planned: Mapping[str, PlannedStep]) -> Cause:
    """Name the parents that must run first."""
    missing = [name for name in dict.fromkeys(named.parents) if planned[name].produced is None]
    paths = {name: path for (path, _), name in zip(dependencies(named.step), named.parents, strict=True)}
    return Cause("parent", tuple(Change("parent", paths[name], None, name) for name in missing))


def _near(earlier: Sequence[tuple[Any, Produced]], record: Mapping[str, Any]) -> list[tuple[Any, Produced]]:
    """Return the newest of those that differ in the fewest top-level fields: comparing all in depth is quadratic."""

    def distance(entry: tuple[Any, Produced]) -> int:
        old, new = entry[0].get("config", {}), record["config"]
        differing = [name for name in {*old, *new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
        others = [name for name in ("code", "inputs", "requires") if entry[0].get(name) != record.get(name)]
        return len(differing) + len(others)

    distances = [distance(entry) for entry in earlier]
    nearest = min(distances)
    near = (entry for entry, far in zip(earlier, distances, strict=True) if far == nearest)
    return list(itertools.islice(near, _COMPARED))


def _cause(named: Named, resolved: Recipe, planned: Mapping[str, PlannedStep], catalogue: Catalogue) -> Cause:
    earlier = catalogue.nearest(named.step.step_name())
    if not earlier:
        return Cause("new")
    compared = [(changes(record, resolved.record), produced) for record, produced in _near(earlier, resolved.record)]
    differing, produced = min(compared, key=lambda pair: len(pair[0]))
    if not differing:
        return Cause("missing", (), produced)
    names = {path: name for (path, _), name in zip(dependencies(named.step), named.parents, strict=True)}
    shown = tuple(
        Change(change.kind, change.path, change.old, f"{change.new} ({names[change.path]})")
        if change.kind == "parent" and change.path in names
        else change
        for change in differing
    )
    kinds = {change.kind for change in shown}
    ranked: tuple[CauseKind, ...] = ("config", "code", "version", "input", "parent")
    return Cause(next(kind for kind in ranked if kind in kinds), shown, produced)
