"""Steps written down and written again as Python: the same value, whatever it holds, and no secret in the text."""

import enum
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, SecretStr

import marin
from marin import AdamW, Config, ElideIf, Files, Placement, Records, Several, Step, Value
from marin.base.errors import DataError
from marin.base.json import dumps
from marin.graph.constructor import constructor_of, opaque_places, secret_places
from marin.graph.recipe import recipe_of
from marin.graph.step import dependencies
from marin.graph.written import WIDTH, Imports, Writer, secret_variable


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Filter(Config):
    """A base with a field, so that subclasses are told apart."""

    least: float = 0.0


class Longest(Filter):
    most: int
    colours: tuple[Colour, ...] = (Colour.RED,)


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0
    also: tuple[int, ...] = field(default=())


def double(number: int) -> int:
    return 2 * number


class Everything(Step[Value[int]]):
    """Takes any value, any configuration, and steps anywhere."""

    value: Any = None
    config: Filter = Filter()
    parents: dict[str, Step[Value[int]]] = Field(default_factory=dict)
    pair: tuple[Step[Value[int]], ...] = ()
    access: Access = Access.READ
    grown: Annotated[int, ElideIf(0)] = 0
    renamed: int = Field(default=1, alias="from")
    folder: Placement[str] = "here"


class Guarded(Step[Value[int]]):
    key: Placement[SecretStr]
    other: Placement[SecretStr] = SecretStr("default")
    client: Placement[object] = None


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(max_size=8),
    st.complex_numbers(),
    st.sampled_from([*Colour, *Access, Access.READ | Access.WRITE, double, Point, int, Longest, marin.Train]),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), timezone(timedelta(hours=-3, minutes=-30))])),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.text(alphabet="ab/.", min_size=1).map(PurePosixPath),
    st.builds(Point, st.floats(allow_nan=False), st.floats(allow_nan=False)),
)
hashable = st.one_of(st.integers(), st.text(), st.booleans(), st.floats(allow_nan=False), st.dates())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.dates()), inner, max_size=3),
        st.builds(Everything, value=inner),
    ).filter(lambda value: not isinstance(value, Step)),
    max_leaves=8,
)
configs = st.one_of(
    st.builds(Filter, least=st.floats(allow_nan=False)),
    st.builds(Longest, most=st.integers(), colours=st.lists(st.sampled_from(Colour), max_size=2).map(tuple)),
)


def steps(inner: st.SearchStrategy[Step[Any]]) -> st.SearchStrategy[Step[Any]]:
    return st.builds(
        Everything,
        value=values,
        config=configs,
        parents=st.dictionaries(st.text(), inner, max_size=2),
        pair=st.lists(inner, max_size=2).map(tuple),
        access=st.sampled_from([Access.READ, Access.READ | Access.WRITE]),
        grown=st.integers(),
        folder=st.text(),
        **{"from": st.integers()},
    )


def written(step: Step[Any], constructor: Mapping[str, Any]) -> tuple[str, Step[Any]]:
    """Return a step's text and what Python makes of it; parents go by a number each."""
    parents = dict(dependencies(step))
    names = {path: f"parent_{number}" for number, path in enumerate(parents)}
    imports = Imports(taken=set(names.values()))
    text = Writer(imports, names.__getitem__).step(constructor, "", 0, 0)
    space: dict[str, Any] = {names[path]: parent for path, parent in parents.items()}
    exec("\n".join(imports.lines()), space)
    return text, eval(text, space)


def fingerprint(step: Step[Any]) -> str:
    return recipe_of(step, lambda parent: fingerprint(parent), ()).fingerprint


@settings(max_examples=300)
@given(steps(st.one_of(st.just(Records(texts=["a"])).map(lambda _: Everything()), st.builds(Everything, value=scalars))))
def test_constructor_written_as_python_makes_the_same_step(step: Everything):
    constructor = json.loads(dumps(constructor_of(step)))
    text, again = written(step, constructor)
    assert fingerprint(again) == fingerprint(step)
    assert again.folder == step.folder  # what no fingerprint holds
    assert dumps(constructor_of(again)) == dumps(constructor_of(step))
    assert "\n" in text or len(text) <= WIDTH or "(" not in text[:-1]
