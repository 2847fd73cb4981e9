"""Constants: what a module binds to a name that is neither a function nor a class.

A plain value counts by value, whoever put it there. What is changed by the very code that reads it, such as a cache,
counts as it is written, or every run would change its own code; so does an object that has no canonical form, with
what it is seen to hold: an object's attributes, a registry's functions.
"""

from types import FunctionType, MappingProxyType, ModuleType

from marin.base.json import Json
from marin.graph.code.held import code_inside, plain, split, state
from marin.graph.code.loaded import Globals, Place, home_of, is_first_party, space_of
from marin.graph.code.meaning import also_imported
from marin.graph.code.node import Description, Reach
from marin.graph.code.said import say


def describe_constant(value: object, space: Globals, name: str, shown: str, reach: Reach) -> Description:
    """Return what a module's value says: its value where it is plain, else the statements that made it."""
    description = Description(home=space)
    description.look(space, name)
    description.held.append((lambda: home_of(space), home_of(space)))
    places = _statements(value, space, name)
    description.places = [(space, place) for place in places]
    if not isinstance(value, FunctionType | type):
        form = plain(value, description, reach, shown)
        if form is not None and not _made_at_run_time(value):
            description.says = [form]
            return description
    description.places = []
    _written(value, space, name, shown, description, reach, places)
    registered = _registered(value)
    if registered is not None:
        description.watch(lambda: [id(each) for each in (_registered(value) or {}).values()])
        description.says.append(plain(registered, description, reach, shown))
    explained = bool(places or also_imported(space, name))
    if isinstance(value, FunctionType | type):
        explained = explained or bool(reach.code(value))
    elif not isinstance(value, ModuleType):
        description.watch(lambda: [id(each) for each in code_inside(value)])
        known, whole = state(value, description, reach, shown)
        description.says += [known, split(code_inside(value), description, reach)]
        explained = explained or whole
    if not explained:
        description.untracked.append(f"{shown}: a {type(value).__name__} made at run time")
    return description


def describe_written(value: object, space: Globals, name: str, shown: str, reach: Reach) -> Description:
    """Return what a module's value says as it is written, with the code that was put into it at import."""
    description = Description(home=space)
    description.look(space, name)
    description.held.append((lambda: home_of(space), home_of(space)))
    _written(value, space, name, shown, description, reach, _statements(value, space, name))
    description.watch(lambda: [id(each) for each in code_inside(value)])
    description.says.append(split(filter(_was_handed, code_inside(value)), description, reach))
    return description


def _written(
    value: object,
    space: Globals,
    name: str,
    shown: str,
    description: Description,
    reach: Reach,
    places: list[Place],
) -> None:
    said: list[Json] = [say(places, space, name, description, reach)]
    description.explains = bool(places)
    other = also_imported(space, name)
    if other is not None:
        said.append(description.edge(reach.constant(value, *other)))
    if not isinstance(value, FunctionType | type):
        said.append([description.edge(node) for node in reach.code(type(value))])
    description.says = said


def _statements(value: object, space: Globals, name: str) -> list[Place]:
    """Return what binds a name and fills its value, without the definition that the value is itself."""
    home = home_of(space)
    places = list(home.definitions.get(name, ()))
    if isinstance(value, FunctionType) and value.__globals__ is space and defines(value, places):
        return [place for place in places if place.piece.kind == "statement"]
    if not isinstance(value, FunctionType | type):
        places += [place for place in home.touching.get(name, ()) if place not in places]
    return places


def defines(function: FunctionType, places: list[Place]) -> bool:
    """Whether one of these places is the definition of a function."""
    code = function.__code__
    return any(
        place.piece.kind == "function" and (place.piece.first, place.piece.name) == (code.co_firstlineno, code.co_name)
        for place in places
    )


def _made_at_run_time(value: object) -> bool:
    """Whether a value holds functions that other functions made: the statement says what they hold."""
    return any(isinstance(inside, FunctionType) and inside.__closure__ for inside in code_inside(value))


def _was_handed(value: FunctionType | type) -> bool:
    """Whether code that ran at import may have handed a function or class on."""
    space = value.__globals__ if isinstance(value, FunctionType) else space_of(value)
    if not is_first_party(space) or "<locals>" in value.__qualname__:
        return False
    return value.__qualname__ == "<lambda>" or value.__qualname__.split(".", 1)[0] in home_of(space).handed


def _registered(value: object) -> dict[object, object] | None:
    """Return what a `functools.singledispatch` function dispatches to, by type."""
    found = getattr(value, "registry", None) if isinstance(value, FunctionType) else None
    return dict(found) if isinstance(found, MappingProxyType) else None
