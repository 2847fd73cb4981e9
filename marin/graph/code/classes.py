"""Classes: what a class says with its bases, its methods, and what is put into it after it is made."""

import enum
import functools
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from marin.base.json import Json
from marin.graph.code.functions import closed
from marin.graph.code.held import held, plain, split
from marin.graph.code.loaded import Place, check_loaded, home_of, is_first_party, space_of, stands_in_its_file, text_of
from marin.graph.code.node import Description, Reach
from marin.graph.code.said import say

_MERGED = {"model_config"}
"""Attributes whose value a library makes of its own defaults; the expression counts."""


def places_of_class(kind: type) -> list[Place]:
    """Return the definitions of a class, and what fills it at the top level; nothing for one an expression made."""
    home, (top, *inner) = home_of(space_of(kind)), kind.__qualname__.split(".")
    around = [place for place in home.definitions.get(top, ()) if place.piece.kind in {"function", "class"}]
    if not around:
        around = [cell for method in _methods(kind) if (cell := _cell_of(method, kind)) is not None][:1]
        top, inner = kind.__qualname__, []
    for name in (part for part in inner if part != "<locals>"):
        around = [
            Place(place.text, number)
            for place in around
            for number, piece in enumerate(place.text.source.pieces)
            if piece.name == name and place.piece.first <= piece.first <= piece.last <= place.piece.last
        ]
    found = [place for place in around if place.piece.kind == "class"]
    if not found or inner:
        return found
    others = {"statement", "condition"} if len(found) > 1 else {"statement"}
    return [*found, *(place for place in home.definitions.get(top, ()) if place.piece.kind in others)]


def describe_class(kind: type, places: Sequence[Place], reach: Reach) -> Description:
    """Return what a first-party class says."""
    space = space_of(kind)
    shown = f"{space.get('__name__')}.{kind.__qualname__}"
    description = Description(home=space)
    description.watch(lambda: [id(method) for method in _methods(kind)])
    bases = [[description.edge(node) for node in reach.code(base)] for base in (*kind.__mro__[1:], type(kind))]
    cells = {name for method in _methods(kind) for name in method.__code__.co_freevars}
    said: list[Json] = [bases, say(places, space, kind.__qualname__, description, reach, cells)]
    for method in _methods(kind):
        if _stands_in(method, places):
            check_loaded(method)
            said.append(closed(method, _state(places), f"{shown}.{method.__name__}", description, reach))
        elif stands_in_its_file(method) and is_first_party(method.__globals__):
            said.append([method.__name__, [description.edge(node) for node in reach.code(method)]])
    if issubclass(kind, enum.Enum):
        members = kind.__members__.items()
        said.append([[name, plain(member.value, description, reach, f"{shown}.{name}")] for name, member in members])
    if "__subclasses__" in description.attributes:
        description.watch(lambda: [id(each) for each in subclasses(kind)])
        said.append(split(subclasses(kind), description, reach))
    for name, value in _values(kind, places):
        description.held.append((_reader(kind, name), value))
        description.guarded.append((name, reach.attribute(kind, name, value)))
    description.says = said
    return description


def describe_attribute(kind: type, name: str, value: object, reach: Reach) -> Description:
    """Return what the plain value of a class attribute says."""
    description = Description(home=space_of(kind))
    description.held.append((_reader(kind, name), value))
    description.says = [name, held(value, description, reach, f"{kind.__module__}.{kind.__qualname__}.{name}")]
    return description


def subclasses(kind: type) -> list[type]:
    """Return all subclasses that are loaded now."""
    found: list[type] = []
    waiting = [kind]
    while waiting:
        made: list[type] = type.__subclasses__(waiting.pop())
        below = [each for each in made if each not in found]
        found += below
        waiting += below
    return found


def _methods(kind: type) -> list[FunctionType]:
    return [function for value in vars(kind).values() for function in _functions_in(value)]


def _functions_in(value: object) -> Iterator[FunctionType]:
    """Yield the functions of what may stand in a class: methods, properties, cached or wrapped ones."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, classmethod | staticmethod):
        yield from _functions_in(value.__func__)
    elif isinstance(value, property):
        yield from (each for each in (value.fget, value.fset, value.fdel) if isinstance(each, FunctionType))
    elif isinstance(value, functools.cached_property | functools.partialmethod):
        yield from _functions_in(value.func)
    elif isinstance(value, functools.singledispatchmethod):
        registered: list[Any] = list(value.dispatcher.registry.values())  # Any: what was registered
        yield from (each for each in registered if isinstance(each, FunctionType))


def _stands_in(method: FunctionType, places: Sequence[Place]) -> bool:
    """Whether a method is one that the class's own body defines."""
    line = method.__code__.co_firstlineno
    lines = [place for place in places if place.piece.kind == "class" and place.piece.first <= line <= place.piece.last]
    return any(text_of(method) is place.text for place in lines)


def _cell_of(method: FunctionType, kind: type) -> Place | None:
    """Return the class statement around a method that stands in no file, such as in a cell that `In` does not keep."""
    text = None if stands_in_its_file(method) else text_of(method)
    for number, piece in enumerate(text.source.pieces if text is not None else ()):
        if text is not None and piece.kind == "class" and piece.name == kind.__qualname__:
            return Place(text, number)
    return None


def _state(places: Sequence[Place]) -> set[str]:
    return {chain[0] for place in places for chain in place.piece.changes}


def _values(kind: type, places: Sequence[Place]) -> list[tuple[str, object]]:
    """Return the attributes that statements give the class, and that its own methods never change."""
    pieces = [place.piece for place in places]
    stored = {name for piece in pieces if piece.kind == "class" for name in piece.stored}
    given = {name for piece in pieces for name in piece.binds}
    given |= {chain[1] for piece in pieces for chain in piece.changes if piece.kind == "statement" and len(chain) == 2}
    if all(base is object or is_first_party(space_of(base)) for base in kind.__mro__):  # nothing is put in by a library
        given |= {name for name in vars(kind) if not name.startswith("__")}
    names = sorted(name for name in given - stored - _MERGED if name in vars(kind) and not name.startswith("__"))
    return [(name, value) for name in names if _is_plain(value := vars(kind)[name])]


def _is_plain(value: object) -> bool:
    return not callable(value) and not hasattr(type(value), "__get__") and not isinstance(value, enum.Enum)


def _reader(kind: type, name: str) -> Any:  # Any: looks the attribute up
    return lambda: vars(kind).get(name)
