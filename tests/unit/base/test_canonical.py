"""Canonical values: what differs differs, what is equal is equal, and nothing else gets in."""

import collections
import enum
import fractions
import functools
import math
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from marin.base.canonical import NOT_HANDLED, digest, encode
from marin.base.config import Config, ElideIf, Placement, Was
from marin.base.errors import CanonicalError, ConfigurationError


def encoded(value: object) -> Any:
    return encode(value, path="x", special=lambda value, path: NOT_HANDLED)


class Colour(enum.Enum):
    RED = 1


class Shade(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Loose(BaseModel, extra="allow"):
    rate: float = 1


class Base(Config):
    rate: float = 1


class Derived(Base):
    beta: float = 2


class Other(Config):
    rate: float = 1


@dataclass(frozen=True)
class Point:
    x: int


class Anything(Config):
    part: list[Any]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DIFFERENT = [
    None, True, False, 0, 1, 2, 1.0, -0.0, 0.0, math.nan, math.inf, -math.inf, "1", "", "a", b"", b"a", b"1", "true",
    [], (), {}, set(), frozenset(), [1], (1,), {1}, frozenset({1}), {"a": 1}, {1: "a"}, {"1": "a"}, [[1], 2], [1, [2]],
    [1, 2], [2, 1], ("ab", "c"), ("a", "bc"), {"$float": "0x1.0p+0"}, {"$tuple": [1]}, {"$dict": []}, 2**53, 2**70,
    1e308, 5e-324, 1 + 0j, Decimal("1"), Decimal("1.0"), Colour.RED, Shade.RED, Number.ONE, NOON, NOON.date(),
    Access.READ, Access.WRITE, Access.READ | Access.WRITE, Access(0), Loose(), Loose(more=1), Loose(more=2),
    timedelta(1), PurePosixPath("a"), Base(), Derived(), Other(), Base(rate=2), Point(1), Point(2), ...,
]  # fmt: skip


def test_encode_different_values_differ():
    by_digest: dict[str, object] = {}
    for value in DIFFERENT:
        twin = by_digest.setdefault(digest(encoded(value)), value)
        assert twin is value, f"{twin!r} and {value!r} have one form"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({1, 2, 3}, {3, 2, 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (math.nan, float("nan")),
        (NOON, NOON.astimezone(timezone(timedelta(hours=5)))),
        (Base(rate=1), Base(rate=1.0)),
        (0.1 + 0.2, 0.30000000000000004),
    ],
)
def test_encode_equal_values_agree(left: object, right: object):
    assert digest(encoded(left)) == digest(encoded(right))


class Grown(Config):
    lr: float
    clip: Annotated[float, ElideIf(0.0)] = 0.0
    workers: Placement[int] = 4


class Small(Config):
    lr: float


class Renamed(Config):
    learning_rate: Annotated[float, Was("lr")]


def fields(value: Config) -> Any:
    return encoded(value)["fields"]


def test_encode_elided_field_keeps_the_form_while_it_equals_its_literal():
    assert fields(Grown(lr=1)) == fields(Small(lr=1))
    assert fields(Grown(lr=1, clip=1.0)) != fields(Small(lr=1))


def test_encode_placement_field_never_counts():
    assert encoded(Grown(lr=1, workers=1)) == encoded(Grown(lr=1, workers=64))


def test_encode_renamed_field_keeps_its_old_name():
    assert fields(Renamed(learning_rate=1)) == fields(Small(lr=1))


class Mixed(Config):
    shards: Annotated[int | bool, ElideIf(1)]


def test_encode_elided_field_counts_for_a_value_that_only_python_calls_equal():
    assert fields(Mixed(shards=1)) == {}
    assert fields(Mixed(shards=True)) == {"shards": True}


class Twice(Config):
    lr: float
    rate: Annotated[float, Was("lr")]


def test_encode_two_fields_of_one_hashed_name_are_refused():
    with pytest.raises(CanonicalError, match="two fields are hashed under the name `lr`") as caught:
        encoded(Twice(lr=1, rate=2))
    assert caught.value.where == "x.rate"


def test_encode_set_members_are_readable_json():
    assert encoded({2, 1}) == {"$set": [1, 2]}


class Holder(Config):
    part: Base


def test_encode_subclass_in_a_base_typed_field_keeps_its_own_fields():
    assert encoded(Holder(part=Derived(beta=2))) != encoded(Holder(part=Derived(beta=3)))
    assert encoded(Holder(part=Derived())) != encoded(Holder(part=Base()))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: x, "x: function"),
        (functools.partial(int, base=2), "functools.partial"),
        (np.float64(1.5), "numpy.float64"),
        (np.arange(3), "numpy.ndarray"),
        (object(), "object"),
        (SecretStr("hush"), "SecretStr"),
        (datetime(2026, 1, 1), "no zone"),
        ([1, {"a": object()}], "x[1]['a']"),
    ],
)
def test_encode_unknown_value_names_its_path_and_hides_secrets(value: object, message: str):
    with pytest.raises(CanonicalError) as caught:
        encoded(value)
    assert message in caught.value.what
    assert caught.value.hint
    assert "hush" not in str(caught.value)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3)
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6
)
values = st.recursive(
    hashables,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def same(left: Any, right: Any) -> bool:
    """Equality that tells 1 from True and 0.0 from -0.0, and looks inside."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left.hex() == right.hex()
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, frozenset):
        return len(left) == len(right) and all(any(same(a, b) for b in right) for a in left)
    return bool(left == right)


@given(values, values)
def test_encode_is_injective(left: object, right: object):
    assert (digest(encoded(left)) == digest(encoded(right))) == same(left, right)


@pytest.mark.parametrize("seed", ["0", "1", "2", "3", "4"])
def test_encode_does_not_know_the_hash_seed(seed: str):
    code = (
        "from marin.base.canonical import *\n"
        "v = [{'a', 'b', 'c', 'd'}, frozenset({('x', 1), ('y', 2)}), {'k': 1, 'j': {b'1', b'2'}}]\n"
        "print(digest(encode(v, path='x', special=lambda v, p: NOT_HANDLED)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
    )
    here = [{"d", "c", "b", "a"}, frozenset({("y", 2), ("x", 1)}), {"j": {b"2", b"1"}, "k": 1}]
    assert answer.stdout.strip() == digest(encoded(here))


def contained(kind: str) -> object:
    """A value that contains itself."""
    if kind == "list":
        value: Any = [1]
        value.append(value)
    elif kind == "dict":
        value = {"a": {}}
        value["a"]["b"] = value
    elif kind == "tuple":
        value = ([],)
        value[0].append(value)
    else:
        value = Anything(part=[])
        value.part.append(value)
    return value


@pytest.mark.parametrize(
    ("kind", "path"),
    [("list", "x[1]"), ("dict", "x['a']['b']"), ("tuple", "x[0][0]"), ("config", "x.part[0]")],
)
def test_encode_value_that_contains_itself_names_the_path(kind: str, path: str):
    with pytest.raises(CanonicalError, match="contains itself") as caught:
        encoded(contained(kind))
    assert caught.value.where == path


def test_encode_value_that_occurs_twice_is_no_circle():
    twin = [1]
    assert encoded([twin, twin, {"a": twin}]) == encoded([[1], [1], {"a": [1]}])


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_encode_very_deep_value_is_refused_with_its_path():
    assert digest(encoded(nested(100)))
    with pytest.raises(CanonicalError, match="nested deeper than 100 levels") as caught:
        encoded({"a": nested(5000)})
    assert caught.value.where.startswith("x['a'][0][0]")


@pytest.mark.parametrize("digits", [16, 4000, 4001, 5000])
def test_encode_big_integers_are_exact(digits: int):
    value = 10**digits
    twins = (value, value + 1, value - 1, -value, hex(value), str(value % 10**16))
    assert len({digest(encoded(each)) for each in twins}) == len(twins)


NUMPY = [
    np.float64(1), np.float32(1), np.int64(1), np.bool_(True), np.str_("a"), np.datetime64("2026-01-01"), np.arange(2),
    np.bytes_(b"a"), np.longdouble(1), np.complex128(1),
]  # fmt: skip


@pytest.mark.parametrize("value", NUMPY, ids=lambda value: type(value).__name__)
def test_encode_numpy_values_are_refused_with_what_to_do(value: object):
    with pytest.raises(CanonicalError, match="cannot be fingerprinted") as caught:
        encoded([value])
    assert caught.value.hint == "use Python's own numbers: float(x), int(x)"


class Celsius(float):
    """A number of one's own."""


class Names(dict):  # type: ignore[type-arg]
    """A dict of one's own."""


@pytest.mark.parametrize(
    "value",
    [Celsius(1), Names(), bytearray(b"a"), range(3), NOON.time(), collections.OrderedDict(), collections.Counter("a"),
     collections.deque([1]), uuid.UUID(int=1), fractions.Fraction(1, 2), memoryview(b"a"), iter([]), {}.keys(), Base],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_encode_values_of_other_types_are_refused_never_guessed(value: object):
    with pytest.raises(CanonicalError, match="cannot be fingerprinted"):
        encoded(value)


class Outer:
    """Holds a class of the same name as another."""

    class Base(Config):
        rate: float = 1


def test_encode_classes_of_one_name_in_different_classes_differ():
    assert encoded(Outer.Base()) != encoded(Base())


class Optional_(Config):
    lr: float
    left: Placement[int] | None = None
    right: Optional[Placement[int]] = None  # noqa: UP045
    both: Placement[int] | Placement[str] = 1


def test_encode_optional_placement_never_counts():
    assert fields(Optional_(lr=1, left=2, right=3, both="a")) == fields(Small(lr=1))


def test_encode_placement_in_a_plain_model_never_counts():
    class Loose(BaseModel):
        lr: float
        workers: Placement[int] | None = None

    assert fields(Loose(lr=1, workers=3)) == fields(Small(lr=1))


def test_encode_mark_that_means_nothing_in_a_plain_model_is_refused():
    class Loose(BaseModel):
        sizes: list[Placement[int]]

    with pytest.raises(ConfigurationError, match="`Placement` stands inside the type"):
        encoded(Loose(sizes=[1]))


def test_encode_function_hook_takes_precedence():
    hook: Callable[[object, str], Any] = lambda value, path: {"$mine": path} if value == 7 else NOT_HANDLED  # noqa: E731
    assert encode([7], path="x", special=hook) == [{"$mine": "x[0]"}]
