"""Functions: what a function says, with what its closure, its defaults and its decorators hold."""

import sys
from collections.abc import Callable
from types import CellType, FunctionType

from marin.base.errors import CanonicalError
from marin.base.json import Json
from marin.graph.code.held import held
from marin.graph.code.loaded import Globals, Place, check_loaded, is_first_party, text_of
from marin.graph.code.meaning import binding
from marin.graph.code.node import Description, Reach
from marin.graph.code.said import say


def describe_function(function: FunctionType, reach: Reach) -> Description:
    """Return what a first-party function says; CanonicalError when its source is not to be had."""
    check_loaded(function)
    space, code = function.__globals__, function.__code__
    shown = f"{space.get('__name__')}.{code.co_qualname}"
    places = places_of_function(function)
    description = Description(home=space)
    description.held.append((lambda: function.__code__, code))
    said: list[Json] = [say(places, space, code.co_qualname, description, reach, code.co_freevars)]
    state = {chain[0] for place in places for chain in place.piece.changes}
    state |= {name for place in places for name in place.piece.own}
    said.append(closed(function, state, shown, description, reach))
    said.append(_defaults(function, state, shown, description, reach))
    if description.opaque:
        description.members += [
            (frozenset({id(bound[0])}), reach.constant(function, *bound)) for bound in _bindings(function)
        ]
    description.says = said
    return description


def places_of_function(function: FunctionType) -> list[Place]:
    """Return the definition of a function; all lambdas of its line, for no one can tell them apart."""
    code, text = function.__code__, text_of(function)
    if text is not None:
        kind = "lambda" if code.co_name == "<lambda>" else "function"
        starting = [Place(text, number) for number in text.source.by_line.get(code.co_firstlineno, ())]
        found = [place for place in starting if place.piece.kind == kind]
        named = [place for place in found if kind == "lambda" or place.piece.name == code.co_name]
        if named:
            return named
    raise CanonicalError(
        f"the source of {function.__qualname__} cannot be read, so its code cannot be fingerprinted: "
        f"{code.co_filename!r} has no such definition in line {code.co_firstlineno}",
        where=f"{function.__module__}.{function.__qualname__}",
        hint="write it with `def` in a file of its own and import it; what `exec` makes has no source to read",
    )


def closed(function: FunctionType, state: set[str], shown: str, description: Description, reach: Reach) -> Json:
    """Return what the cells of a closure hold, save those that it changes itself."""
    said: dict[str, Json] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name == "__class__" or name in state:
            continue
        description.held.append((_reader(cell), _contents(cell)))
        said[name] = held(_contents(cell), description, reach, f"{shown}.{name}")
    return said


def _defaults(function: FunctionType, state: set[str], shown: str, description: Description, reach: Reach) -> Json:
    code, values, by_name = function.__code__, function.__defaults__ or (), function.__kwdefaults__ or {}
    description.held.append((lambda: function.__defaults__, function.__defaults__))
    parameters = code.co_varnames[: code.co_argcount][code.co_argcount - len(values) :]
    named = {**dict(zip(parameters, values, strict=True)), **by_name}
    return {
        name: held(value, description, reach, f"{shown}.{name}") for name, value in named.items() if name not in state
    }


def _reader(cell: CellType) -> Callable[[], object]:
    return lambda: _contents(cell)


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _bindings(function: FunctionType) -> list[tuple[Globals, str]]:
    """Return the modules and names that a function made at run time is bound to."""
    found = {}
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", None)
        if isinstance(space, dict) and is_first_party(space):
            for name in [name for name, value in list(space.items()) if value is function]:
                bound = binding(space, name)
                if bound is not None:
                    found[id(bound[0]), bound[1]] = bound
    return sorted(found.values(), key=lambda bound: (bound[1], str(bound[0].get("__name__"))))
