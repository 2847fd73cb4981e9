"""Readers of type hints: decorators, bases and metaclasses for which a hint is more than a comment.

A hint makes a field of a dataclass, a validated argument, the case of a `singledispatch`. Where nothing reads it, it
cannot change a result and does not count. What is not known to leave hints alone is taken to read them: a needless
rerun costs time, a wrong hit the result.
"""

import builtins
from types import FunctionType, ModuleType

from marin.graph.code.loaded import Globals, home_of, is_first_party, space_of
from marin.graph.code.meaning import ABSENT, Look, meaning_of
from marin.graph.code.piece import Chain
from marin.graph.step import Step

_INDIFFERENT = {
    *(
        "builtins",
        "functools",
        "contextlib",
        "abc",
        "_abc",
        "typing",
        "typing_extensions",
        "enum",
        "atexit",
        "warnings",
    ),
    *("collections", "collections.abc", "threading", "unittest", "logging", "ray", "pytest", "marin"),
}
_INDIFFERENT_BELOW = ("torch.nn.", "torch.autograd.", "torch.utils._contextlib", "marin.", "ray.", "_pytest.")
_INDIFFERENT_NAMES = {"torch.compile"}
_READING_NAMES = {
    "typing.NamedTuple",
    "typing.TypedDict",
    "typing_extensions.TypedDict",
    "typing_extensions.NamedTuple",
}
_ACCESSORS = {"setter", "getter", "deleter"}


def reads_hints(chain: Chain, space: Globals, look: Look) -> bool:
    """Whether the decorator, base or metaclass of this name may read the hints of what it is given."""
    try:
        found = meaning_of(chain, space, look)
    except ImportError:
        return True
    value, rest = found.value, found.rest
    if value is ABSENT and found.libraries:
        value, rest = _in_library(space.get(chain[0]), chain[1:])
    if value is ABSENT and hasattr(builtins, chain[0]):
        value = getattr(builtins, chain[0])
    if value is ABSENT or value is None:
        return chain[-1] not in _ACCESSORS
    if rest:  # `@REGISTRY.add` of our own, `@app.command` of a library
        kind = value if isinstance(value, type) else type(value)
        return not is_first_party(space_of(kind)) or _class_reads(kind)
    if isinstance(value, FunctionType) and is_first_party(value.__globals__):
        return _mentions(value.__globals__, value.__code__.co_qualname.split(".", 1)[0])
    if isinstance(value, type):
        return _class_reads(value)
    if is_first_party(space_of(type(value))):
        return _class_reads(type(value))
    return not _indifferent(value)


def _in_library(value: object, rest: Chain) -> tuple[object, Chain]:
    while isinstance(value, ModuleType) and rest:
        value, rest = vars(value).get(rest[0], ABSENT), rest[1:]
    return value, rest


def _class_reads(kind: type) -> bool:
    if issubclass(kind, Step):  # a step's fields are in its recipe, as the values that they are
        return False
    for base in (*kind.__mro__, type(kind)):
        space = space_of(base)
        if is_first_party(space):
            if _mentions(space, base.__qualname__.split(".", 1)[0]):
                return True
        elif not _indifferent(base):
            return True
    return False


def _mentions(space: Globals, name: str) -> bool:
    return any("hints" in place.piece.reads for place in home_of(space).definitions.get(name, ()))


def _indifferent(value: object) -> bool:
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    full = f"{module}.{name}"
    if full in _READING_NAMES:
        return False
    return module in _INDIFFERENT or module.startswith(_INDIFFERENT_BELOW) or full in _INDIFFERENT_NAMES
