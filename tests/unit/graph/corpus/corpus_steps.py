"""Steps of the corpus: every kind of value that counts, and variants that must or must not differ."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Optional

import corpus_code

from marin import Config, Context, ElideIf, Placement, Several, Step, Value, Was


class Mode(enum.Enum):
    """An enum."""

    FAST = "fast"
    EXACT = "exact"


class Access(enum.Flag):
    """A flag."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Pair:
    """A dataclass."""

    left: int
    right: int


class Part(Config):
    """A base class."""

    rate: float = 1.0


class Special(Part):
    """A subclass with a field of its own."""

    beta: float = 2.0


class Whole(Config):
    """Holds parts."""

    part: Part = Part()
    parts: Several[Part] = ()
    by_name: dict[str, Part] = {}  # noqa: RUF012


class Leaf(Step[Value[int]]):
    """The first of a chain."""

    number: int

    def run(self, ctx: Context) -> Value[int]:
        """Run."""
        return Value.write(ctx.output, self.number)


class Wide(Step[Value[int]]):
    """A step with fields of every kind."""

    number: int = 1
    any: Any = None
    names: frozenset[str] = frozenset({"a", "b", "c"})
    sizes: set[int] = {3, 1, 2}  # noqa: RUF012
    table: dict[str, int] = {"a": 1, "b": 2}  # noqa: RUF012
    pairs: Several[int] = (1, 2)
    mode: Mode = Mode.FAST
    access: Access = Access.READ | Access.WRITE
    when: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)
    day: date = date(2026, 1, 1)
    wait: timedelta = timedelta(seconds=1)
    price: Decimal = Decimal("1.10")
    path: PurePosixPath = PurePosixPath("data/a")
    data: bytes = b"\x00a"
    pair: Pair = Pair(1, 2)
    whole: Whole = Whole()
    text: str = "grüße \ud800"
    function: Callable[..., Any] = corpus_code.first
    grown: Annotated[float, ElideIf(0.0)] = 0.0
    learning_rate: Annotated[float, Was("lr")] = 0.5
    workers: Placement[int] = 4
    batch: Placement[int] | None = None
    buffer: Optional[Placement[int]] = None  # noqa: UP045
    above: Step[Value[int]] | None = None
    others: Several[Step[Value[int]]] = ()

    def run(self, ctx: Context) -> Value[int]:
        """Run."""
        found = corpus_code.uses_sets(), corpus_code.uses_functions(), corpus_code.uses_classes()
        return Value.write(ctx.output, len(found))


class Versioned(Wide):
    """The same with a declared version."""

    version = 3


EQUAL: dict[str, list[Callable[[], Step[Any]]]] = {
    "plain": [
        Wide,
        lambda: Wide(names=frozenset({"c", "b", "a"})),
        lambda: Wide(sizes={2, 3, 1}),
        lambda: Wide(table={"b": 2, "a": 1}),
        lambda: Wide(pairs=[1, 2]),
        lambda: Wide(when=datetime(2026, 1, 1, 17, tzinfo=timezone(timedelta(hours=5)))),
        lambda: Wide(workers=64, batch=3, buffer=4),
        lambda: Wide(grown=-0.0 + 0.0),
        lambda: Wide(whole=Whole(part=Part(rate=1))),
        lambda: Wide().on(cpus=7, memory="3 GB").named("other").at("elsewhere"),
    ],
    "plain, versioned": [Versioned, lambda: Versioned(workers=64), lambda: Versioned().named("x")],
    "nan": [lambda: Wide(any=math.nan), lambda: Wide(any=float("-nan")), lambda: Wide(any=math.inf - math.inf)],
    "above": [lambda: Wide(above=Leaf(number=1)), lambda: Wide(above=Leaf(number=1).on(cpus=2).named("y"))],
}
"""Steps of a group have one fingerprint."""

VALUES = [
    0, 1, True, False, 1.0, 0.0, -0.0, "1", "", b"", [], (), {}, set(), frozenset(), [1], (1,), {1}, [[1], []],
    [[], [1]], {"a": 1}, {"a": 1.0}, {1: "a"}, math.inf, -math.inf, 10**20, 10**20 + 1, 1e20, 2**53, float(2**53),
    5e-324, 1j, ...,
    Mode.FAST, Mode.EXACT, Access.READ, Access(0), Part(), Special(), Special(rate=2), Whole(), Pair(1, 2), Pair(2, 1),
    Decimal("1.1"), Decimal("1.10"), Decimal("NaN"), "a", b"a", PurePosixPath("a"), date(2026, 1, 1), timedelta(1),
    datetime(2026, 1, 1, tzinfo=UTC), {"$float": "nan"},
    {"$set": [1]}, ["a", "bc"], ["ab", "c"], int, str,
    corpus_code.first, corpus_code.second, "\ud800", "\udc00",
]  # fmt: skip


def name(value: object) -> str:
    """A name for a value in a report."""
    return f"{getattr(value, '__name__', None) or repr(value)} {type(value).__name__}"


DIFFERENT: dict[str, Callable[[], Step[Any]]] = {
    **{f"any {name(value)}": lambda value=value: Wide(any=value) for value in VALUES},
    "leaf": lambda: Leaf(number=1),
    "other leaf": lambda: Leaf(number=2),
    "number": lambda: Wide(number=2),
    "rename is no swap": lambda: Wide(learning_rate=0.25),
    "grown": lambda: Wide(grown=1.0),
    "elided is no minus zero": lambda: Wide(grown=-0.0),
    "names": lambda: Wide(names=frozenset({"a", "b"})),
    "pairs swapped": lambda: Wide(pairs=(2, 1)),
    "mode": lambda: Wide(mode=Mode.EXACT),
    "access": lambda: Wide(access=Access.READ),
    "when": lambda: Wide(when=datetime(2026, 1, 1, 13, tzinfo=UTC)),
    "price": lambda: Wide(price=Decimal("1.1")),
    "path": lambda: Wide(path=PurePosixPath("data/b")),
    "function": lambda: Wide(function=corpus_code.second),
    "subclass": lambda: Wide(whole=Whole(part=Special())),
    "subclass's own field": lambda: Wide(whole=Whole(part=Special(beta=3.0))),
    "subclass's inherited field": lambda: Wide(whole=Whole(part=Special(rate=3.0))),
    "parts": lambda: Wide(whole=Whole(parts=(Part(),))),
    "part by name": lambda: Wide(whole=Whole(by_name={"a": Part()})),
    "part by another name": lambda: Wide(whole=Whole(by_name={"b": Part()})),
    "above another": lambda: Wide(above=Leaf(number=2)),
    "above, in the other field": lambda: Wide(others=(Leaf(number=1),)),
    "two above": lambda: Wide(others=(Leaf(number=1), Leaf(number=2))),
    "two above, swapped": lambda: Wide(others=(Leaf(number=2), Leaf(number=1))),
}  # fmt: skip
"""Steps whose fingerprints differ from one another and from those of each group."""

CODE = [getattr(corpus_code, name) for name in vars(corpus_code) if name.startswith("uses_")]
