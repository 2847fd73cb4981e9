"""Code of the corpus: functions that reach what memory order and hash seeds could disturb."""

import enum
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import BaseModel

NAMES = {"delta", "alpha", "charlie", "bravo"}
PAIRS = frozenset({("x", 1), ("y", 2), ("z", 3)})
WORD = re.compile("[a-z]+", re.IGNORECASE)
LIMIT: float = 0.1 + 0.2


class Colour(enum.Enum):
    """Members whose hash depends on their names."""

    RED = "r"
    GREEN = "g"
    BLUE = "b"


class Shape(enum.Enum):
    """Another."""

    ROUND = 1
    SQUARE = 2


@dataclass(frozen=True)
class Point:
    """A dataclass."""

    x: int
    tags: frozenset[str] = field(default_factory=lambda: frozenset({"p", "q"}))


class Model(BaseModel):
    """A helper that checks its fields."""

    rate: float = 0.5
    part: "Point | None" = None


def first(text: str) -> str:
    """One."""
    return text.strip()


def second(text: str) -> str:
    """Another."""
    return text.lower()


def third(text: str) -> str:
    """One more."""
    return text.upper()


BY_COLOUR = {Colour.RED: first, Colour.GREEN: second, Colour.BLUE: third}
ALL: set[Callable[[str], str]] = {third, first, second}
MIXED = {Colour.RED, Shape.ROUND, Point(1), ("a", Shape.SQUARE), functools.partial}
REGISTRY: dict[str, Callable[[str], str]] = {}


def register(function: Callable[[str], str]) -> Callable[[str], str]:
    """Add a function to the registry."""
    REGISTRY[function.__name__] = function
    return function


@register
def registered(text: str) -> str:
    """Reached through the registry alone."""
    return WORD.sub("", text)


def scale(factor: float) -> Callable[[float], float]:
    """A closure over a number."""

    def scaled(x: float) -> float:
        return x * factor

    return scaled


double, triple = scale(2.0), scale(3.0)


class Registered:
    """Base that knows its subclasses."""

    known: dict[str, type] = {}  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        Registered.known[cls.__name__] = cls


class Left(Registered):
    """One."""

    side = "left"


class Right(Registered):
    """Another."""

    side = "right"


@functools.singledispatch
def show(value: object) -> str:
    """Dispatches."""
    return str(value)


@show.register
def _(value: int) -> str:
    return hex(value)


def uses_sets() -> object:
    return NAMES, PAIRS, MIXED


def uses_functions() -> object:
    return ALL, BY_COLOUR, [double(1), triple(1)], functools.partial(first)


def uses_registry(name: str) -> object:
    return REGISTRY[name](name), Registered.known[name]


def uses_classes() -> object:
    return Model(), Point(2), show(3), LIMIT


async def uses_generators(names: list[str]) -> object:
    return [each async for each in _later(names)]


async def _later(names: list[str]) -> object:
    for name in names:
        yield registered(name)
