"""Topology: all steps that are wanted or needed, each once, parents first, with unique names.

Steps of equal recipes are one step. Nothing here recurses: a chain may be thousands long.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin.base.errors import ConfigurationError
from marin.graph.files import FileRef
from marin.graph.recipe import NOTHING_ACCEPTED, Accepted, recipe_of
from marin.graph.step import Step, dependencies

Pins = Callable[[tuple[str, ...]], tuple[FileRef, ...]]


@dataclass(frozen=True)
class Named:
    """A step with its unique name in a plan and its static recipe."""

    name: str
    step: Step[Any]
    recipe: str
    """The static recipe's fingerprint."""
    pins: tuple[FileRef, ...]
    parents: tuple[str, ...]
    """Names in the order of `dependencies(step)`."""


def order(steps: Sequence[Step[Any]], pins: Pins, accepted: Accepted = NOTHING_ACCEPTED) -> tuple[Named, ...]:
    """Return all steps that are wanted or needed, each once, parents first, with unique names.

    Steps of equal recipes are one step. A name is `.named(...)`, else the step's own, numbered when it recurs.
    """
    known: dict[int, str] = {}
    found: dict[str, tuple[Step[Any], tuple[FileRef, ...], tuple[str, ...]]] = {}
    for step in _parents_first(steps):
        parents = tuple(known[id(parent)] for _, parent in dependencies(step))
        pinned = pins(step.inputs()) if step.inputs() else ()
        fingerprint = recipe_of(step, lambda parent: known[id(parent)], pinned, accepted).fingerprint
        known[id(step)] = fingerprint
        first = found.get(fingerprint)
        if first is None or (first[0].placed.name is None and step.placed.name is not None):
            found[fingerprint] = (step, pinned, parents)
    names = _names({fingerprint: entry[0] for fingerprint, entry in found.items()})
    return tuple(
        Named(names[fingerprint], step, fingerprint, pinned, tuple(names[parent] for parent in parents))
        for fingerprint, (step, pinned, parents) in found.items()
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


def levels(named_steps: Sequence[Named]) -> list[list[Named]]:
    """Group the steps, parents first, by the length of the longest chain above them."""
    depths: dict[str, int] = {}
    levels: list[list[Named]] = []
    for named in named_steps:
        depth = depths[named.name] = 1 + max((depths[parent] for parent in named.parents), default=-1)
        levels.extend([] for _ in range(depth + 1 - len(levels)))
        levels[depth].append(named)
    return levels
