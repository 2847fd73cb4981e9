"""Meanings: what the names in a definition stand for where it is loaded.

A name of a library counts by the import that binds it, as written, for where a library keeps its objects changes with
its versions; first-party names are followed through modules and imports to the value itself.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, TypeAlias

from marin.graph.code.loaded import (
    Globals,
    first_party_module,
    home_of,
    imported,
    is_first_party,
    libraries,
    origin,
)
from marin.graph.code.piece import Chain, import_of

ABSENT = object()
Look: TypeAlias = Callable[[Globals, str], object]


class Meaning(NamedTuple):
    """What a dotted name stands for, as far as modules go."""

    value: object
    """ABSENT when the name is a library's, a builtin's, or nobody's."""
    space: Globals
    name: str
    """The module that the value was found in, and its name there."""
    rest: Chain
    """What follows, such as attributes of a class."""
    libraries: tuple[str, ...]
    """The library imports that bind it, as written."""


def meaning_of(chain: Chain, space: Globals, look: Look) -> Meaning:
    """Return what a chain means in a module. Raises ImportError if a first-party import in it fails."""
    found = import_of(chain[0])
    if found is not None:
        return _imported_inside(chain, found.module, found.attribute, space, look, top=found.top)
    value = look(space, chain[0])
    named = tuple(libraries(space, chain[0])) if value is not ABSENT else ()
    if isinstance(value, ModuleType) and not is_first_party(vars(value)):
        return Meaning(ABSENT, {}, "", chain[1:], named)
    return _through_modules(Meaning(value, space, chain[0], chain[1:], named), look)


def _imported_inside(
    chain: Chain, module: str, attribute: str | None, space: Globals, look: Look, *, top: bool
) -> Meaning:
    """Follow an import inside a definition; what is not first-party is not imported."""
    loaded = first_party_module(module, space.get("__package__") or "")
    if loaded is None:
        bound = module.split(".", maxsplit=1)[0] if top else module
        return Meaning(ABSENT, {}, "", chain[1:], (f"{bound}:{attribute or ''}",))
    if attribute is None:
        package = sys.modules[module.split(".", maxsplit=1)[0]] if top else loaded
        return _through_modules(Meaning(package, vars(package), "", chain[1:], ()), look)
    if look(vars(loaded), attribute) is ABSENT:
        first_party_module(f"{loaded.__name__}.{attribute}", "")
    value = look(vars(loaded), attribute)
    return _through_modules(Meaning(value, vars(loaded), attribute, chain[1:], ()), look)


def _through_modules(found: Meaning, look: Look) -> Meaning:
    value, space, name, rest, named = found
    while isinstance(value, ModuleType) and is_first_party(vars(value)) and rest:
        space, name, rest = vars(value), rest[0], rest[1:]
        value = look(space, name)
        if value is ABSENT and "__getattr__" in space:  # it makes the attribute when it is asked for
            name, rest = "__getattr__", ()
            value = look(space, name)
        named = tuple(libraries(space, name))
        if isinstance(value, ModuleType) and not is_first_party(vars(value)):
            return Meaning(ABSENT, {}, "", rest, named)
    return Meaning(value, space, name, rest, named)


def binding(space: Globals, name: str) -> tuple[Globals, str] | None:
    """Return the first-party module whose statements bind a value, and its name there; None for a library's."""
    if not name or not is_first_party(space):
        return None
    return origin(space, name)


def also_imported(space: Globals, name: str) -> tuple[Globals, str] | None:
    """Return where a name comes from that is both bound and imported, as in `try: from x import y`."""
    if name not in home_of(space).imports:
        return None
    found = imported(space, name)
    return origin(*found) if found and is_first_party(found[0]) else None
