"""Held values: what a closure's cell, a default or a module's name holds, as canonical JSON with code in it.

Plain values count by value. Functions and classes in them count as code, and what has no canonical form is named, so
that the statement that made it can be looked for.
"""

import enum
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from pydantic import BaseModel

from marin.base.canonical import NOT_HANDLED, NotHandled, Special, encode
from marin.base.errors import CanonicalError
from marin.base.json import Json, dumps
from marin.graph.code.loaded import Globals, home_of, is_first_party, space_of
from marin.graph.code.node import Description, Reach, shape

_NEVER_CHANGES = (type(None), bool, int, float, complex, str, bytes, enum.Enum)
_GUARDED = (dict, set, frozenset, list, functools.partial, MethodType)
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
_MOST_MEMBERS, _DEEPEST, _MOST_LEVELS = 10_000, 50, 8


def plain(value: object, description: Description, reach: Reach, path: str) -> Json:
    """Return the canonical form of a value, its code as places among the edges; None for one that has none."""

    inside: list[int] = []

    def special(member: object, at: str) -> Json | NotHandled:
        if type(member) not in _GUARDED:
            return _member(member, description, reach, at, special)
        if id(member) in inside or len(inside) > _DEEPEST:
            raise CanonicalError(f"{at}: contains itself", where=at, hint="leave it out")
        inside.append(id(member))
        form = _member(member, description, reach, at, special)
        inside.pop()
        return form

    try:
        form = encode(value, path=path, special=special)
        if not isinstance(value, _NEVER_CHANGES):
            description.values.append((value, shape(value)))
    except CanonicalError:
        return None
    return {"value": form}


def held(value: object, description: Description, reach: Reach, path: str) -> Json:
    """Return the form of a value that a function carries, whatever it is."""
    form = plain(value, description, reach, path)
    if form is not None:
        return form
    kind = type(value)
    code = [description.edge(node) for node in (*reach.code(kind), *reach.code(value))]
    known, whole = state(value, description, reach, path)
    if not whole:
        description.opaque.append(f"{path}: a {kind.__name__} made at run time")
    return {"object": [library_name(kind) if not code else None, code, known]}


def state(value: object, description: Description, reach: Reach, path: str) -> tuple[Json, bool]:
    """Return the plain attributes of an object of a first-party class, and whether that is all there is to it.

    Attributes that its methods change while it is used do not count.
    """
    kind = type(value)
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict) or not is_first_party(space_of(kind)) or isinstance(value, FunctionType | ModuleType):
        return None, False
    if any(base is not object and not is_first_party(space_of(base)) for base in kind.__mro__):
        return None, False
    description.watch(lambda: [id(each) for each in vars(value).values()])
    changed = {name for base in kind.__mro__[:-1] for name in stored_by(base)}
    forms = {name: plain(own[name], description, reach, f"{path}.{name}") for name in sorted(own.keys() - changed)}
    return forms, not (changed & own.keys()) and None not in forms.values()


def stored_by(kind: type) -> set[str]:
    """Return the attributes that methods of a first-party class assign or change, save when an object is made."""
    space = space_of(kind)
    if not is_first_party(space):
        return set()
    places = home_of(space).definitions.get(kind.__qualname__.split(".", 1)[0], ())
    return {name for place in places for name in place.piece.stored}


def code_inside(value: object) -> Iterator[FunctionType | type]:
    """Yield the functions and classes that a value holds, at any depth: what a registry has registered."""
    met: set[int] = set()
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting and len(met) < _MOST_MEMBERS:
        inner, depth = waiting.pop()
        if id(inner) in met or isinstance(inner, ModuleType | str | bytes | int | float | None):
            continue
        met.add(id(inner))
        if isinstance(inner, FunctionType | type):
            yield inner
        elif depth < _MOST_LEVELS:
            waiting += [(member, depth + 1) for member in _members(inner)]


def _members(value: object) -> list[object]:
    if isinstance(value, Mapping | MappingProxyType):
        return [*value.keys(), *value.values()] if isinstance(value, dict | MappingProxyType) else []
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, functools.partial | MethodType):
        return parts(value)
    if is_first_party(space_of(type(value))):
        return list(getattr(value, "__dict__", {}).values())
    return []


def split(values: Iterable[FunctionType | type], description: Description, reach: Reach) -> Json:
    """Return code that was found by looking, as places among the edges; what is of other modules becomes members."""
    near = reach.importable(description.home or {})
    said: list[Json] = []
    for value in sorted(values, key=by_name):
        spaces = foreign_spaces(value, near)
        nodes = reach.code(value)
        if not nodes and is_first_party(_space_of_code(value)):
            description.untracked.append(f"{_space_of_code(value)['__name__']}.{value.__qualname__}: made at run time")
        for node in nodes:
            if spaces:
                description.members.append((spaces, node))
            else:
                said.append(description.edge(node))
    return said


def parts(value: Any) -> list[object]:  # Any: a partial or a bound method
    """Return what a partial or a bound method is made of."""
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    return [value.func, value.args, value.keywords]


def library_name(value: Any) -> str:  # Any: a function or a class
    """Return the name of a library's function or class, without private modules: versions move things among them."""
    public = [part for part in value.__module__.split(".") if not part.startswith("_")]
    return ".".join((*public, value.__qualname__))


def by_name(value: FunctionType | type) -> tuple[str, int, str]:
    """Return a key that orders functions and classes, whatever was imported first."""
    line = value.__code__.co_firstlineno if isinstance(value, FunctionType) else 0
    return value.__qualname__, line, value.__module__


def _member(value: object, description: Description, reach: Reach, path: str, special: Special) -> Json | NotHandled:
    if isinstance(value, FunctionType | type):
        description.holds_code = True
        nodes = reach.code(value)
        if not nodes and is_first_party(_space_of_code(value)):
            description.untracked.append(f"{path}: {value.__qualname__} was made at run time")
        if not nodes:
            return {"$library": library_name(value)}
        return {"$code": [description.edge(node) for node in nodes]}
    if isinstance(value, ModuleType):
        if not is_first_party(vars(value)):
            return {"$module": value.__name__}
        return {"$module": [description.edge(node) for node in reach.code(value)]}
    if isinstance(value, functools.partial | MethodType):
        description.holds_code = True
        return {"$bound": [encode(part, path=path, special=special) for part in parts(value)]}
    if type(value) in (dict, set, frozenset, list):
        own = _without_foreign(value, description, reach, path)
        if own is not value:
            return encode(own, path=path, special=special)
        return NOT_HANDLED if type(value) is list else _sorted_first(value, path, special)
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        return _array(value)
    if isinstance(value, re.Pattern):
        return {"$pattern": [encode(value.pattern, path=path, special=_form_by_name), int(value.flags)]}
    if isinstance(value, BaseModel | enum.Enum) or (is_dataclass(value) and not isinstance(value, type)):
        for node in reach.code(type(value)):  # its methods
            description.edge(node)
    return NOT_HANDLED


def _array(value: Any) -> Json | NotHandled:  # Any: a numpy array; numpy is not imported here
    """Return an array of numbers by its bytes: a table that was read from a file shows no change in its expression."""
    if value.dtype.hasobject:
        return NOT_HANDLED
    return {"$array": [value.dtype.str, list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]}


def _without_foreign(value: Any, description: Description, reach: Reach, path: str) -> Any:  # Any: a collection
    """Return a collection without what other modules put in, which becomes members of the description."""
    every = [*value, *value.values()] if isinstance(value, dict) else value
    if description.home is None or all(type(member) in _SCALARS for member in every):
        return value
    near = reach.importable(description.home)
    pairs = list(value.items()) if isinstance(value, dict) else [(member, None) for member in value]
    own: list[tuple[Any, Any]] = []
    foreign: list[tuple[Any, Any]] = []
    for key, member in pairs:
        spaces = foreign_spaces((key, member), near)
        (foreign if spaces else own).append((key, member))
    if not foreign:
        return value
    foreign.sort(key=lambda pair: dumps(encode(pair, path=path, special=_form_by_name)))
    for key, member in foreign:
        description.members.append((foreign_spaces((key, member), near), reach.item(key, member, path)))
    description.holds_code = True
    return dict(own) if isinstance(value, dict) else type(value)(key for key, _ in own)


def _space_of_code(value: FunctionType | type) -> Globals:
    return value.__globals__ if isinstance(value, FunctionType) else space_of(value)


def foreign_spaces(value: object, near: frozenset[int]) -> frozenset[int]:
    """Return the modules by id that code in a value belongs to, save those in `near`."""
    spaces = [_space_of_code(each) for each in code_inside(value)]
    return frozenset(id(space) for space in spaces if is_first_party(space)) - near


def _sorted_first(value: Any, path: str, special: Special) -> Json | NotHandled:  # Any: a dict or a set
    """Encode what has no order of its own in one that no hash seed decides, for edges are numbered as they are met."""
    every = [*value, *value.values()] if isinstance(value, dict) else value
    if all(type(member) in _SCALARS for member in every):
        return NOT_HANDLED
    members = sorted(value, key=lambda member: dumps(encode(member, path=path, special=_form_by_name)))
    forms = [encode(member, path=f"{path}[{place}]", special=special) for place, member in enumerate(members)]
    if not isinstance(value, dict):
        return {f"${type(value).__name__}": forms}
    items = [encode(value[member], path=f"{path}[{member!r}]", special=special) for member in members]
    return {"$dict": [list(pair) for pair in zip(forms, items, strict=True)]}


def _form_by_name(value: object, _: str) -> Json | NotHandled:
    if isinstance(value, FunctionType):
        return {"$code": [value.__qualname__, value.__code__.co_firstlineno]}
    if isinstance(value, type):
        return {"$code": value.__qualname__}
    if isinstance(value, ModuleType):
        return {"$module": value.__name__}
    if isinstance(value, functools.partial | MethodType):
        return {"$bound": [encode(part, path="", special=_form_by_name) for part in parts(value)]}
    if isinstance(value, re.Pattern):
        return {"$pattern": [encode(value.pattern, path="", special=_form_by_name), int(value.flags)]}
    return NOT_HANDLED
