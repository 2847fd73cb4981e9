"""Steps written down and written again as Python: the same value, whatever it holds, and no secret in the text."""

import enum
import json
import math
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
from marin import AdamW, Config, ElideIf, Files, Placement, Step, Value
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


class Switch(Step[Value[int]]):
    flipped: Any = 1
    seconds: float | None = 120
    number: int | float = 1


class Follows(Step[Value[int]]):
    before: Step[Value[int]] = Switch()


class Guarded(Step[Value[int]]):
    key: Placement[SecretStr]
    other: Placement[SecretStr] = SecretStr("default")
    client: Placement[object] = None
    token: Placement[str] = Field(default="", repr=False)


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
    st.datetimes(
        timezones=st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), timezone(timedelta(hours=-3, minutes=-30))])
    ),
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
    ),
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
    exec("\n".join(imports.statements().values()), space)
    return text, eval(text, space)


def fingerprint(step: Step[Any]) -> str:
    return recipe_of(step, fingerprint, ()).fingerprint


@settings(max_examples=200)
@given(steps(st.builds(Everything, value=scalars)))
def test_constructor_written_as_python_makes_the_same_step(step: Everything):
    constructor = json.loads(dumps(constructor_of(step)))
    _, again = written(step, constructor)
    assert fingerprint(again) == fingerprint(step)
    assert again.folder == step.folder  # what no fingerprint holds
    assert dumps(constructor_of(again)) == dumps(constructor_of(step))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1.0, "1.0"),
        (True, "True"),
        (-0.0, "-0.0"),
        (math.inf, "float('inf')"),
        (10**30, str(10**30)),
        ("it's", '"it\'s"'),
        ((1,), "(1,)"),
        (set(), "set()"),
        (frozenset({2, 1}), "frozenset({1, 2})"),
        (b"\x00a", "b'\\x00a'"),
        (date(2026, 1, 2), "date(2026, 1, 2)"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "datetime(2026, 1, 2, 3, tzinfo=UTC)"),
        (
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            'datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)',
        ),
        (time(0, 0), "time()"),
        (timedelta(hours=1), "timedelta(seconds=3600)"),
        (Decimal("1.50"), 'Decimal("1.50")'),
        (Path("a/b"), 'Path("a/b")'),
        (PurePosixPath("a"), 'PurePosixPath("a")'),
        (Colour.BLUE, "Colour.BLUE"),
        (double, "double"),
        (marin.Train, "Train"),
        (dict, "dict"),
        (Point(1.0, also=(2,)), "Point(x=1.0, also=(2,))"),
        (Filter(least=1e-3), "Filter(least=0.001)"),
        (AdamW(lr=3e-4), "AdamW(lr=0.0003)"),
        (..., "..."),
    ],
)
def test_constructor_writes_a_value_as_a_user_would(value: object, text: str):
    step = Everything(value=value)
    assert written(step, constructor_of(step))[0] == f"Everything(value={text})"


def test_constructor_leaves_defaults_out_and_tells_true_from_one():
    assert constructor_of(Everything(config=Filter(), folder="here", access=Access.READ))["fields"] == []
    assert constructor_of(Switch(seconds=120.0, number=1))["fields"] == []
    assert constructor_of(Switch(number=1.0))["fields"] == [["number", 1.0]]
    assert constructor_of(Switch(flipped=True))["fields"] == [["flipped", True]]


def test_constructor_writes_a_parent_that_is_the_default():
    assert constructor_of(Follows())["fields"] == [["before", {"parent": "before"}]]


def test_constructor_keeps_where_files_lie_and_names_the_patterns():
    constructor = constructor_of(Files(url="corpus/*.txt", exclude=["b*"]))
    assert constructor["class"] == "marin:Files"
    assert constructor["inputs"] == ["corpus/*.txt", "!b*"]
    assert constructor["placement"] == ["url", "exclude"]
    step = Files(url="corpus/*.txt", exclude=["b*"])
    assert written(step, constructor)[0] == 'Files(url="corpus/*.txt", exclude=("b*",))'


def test_constructor_breaks_long_calls_into_lines():
    step = Everything(value={"texts": ["x" * 40] * 3, "n": 1}, folder="y" * 40)
    text = written(step, constructor_of(step))[0]
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert text.splitlines()[:2] == ["Everything(", "    value={"]


def test_constructor_never_holds_a_secret():
    step = Guarded(key=SecretStr("hunter2"), other=SecretStr("hunter3"), token="hunter4")
    constructor = constructor_of(step)
    assert "hunter" not in dumps(constructor)
    assert list(secret_places(constructor)) == [("key", "SecretStr"), ("other", "SecretStr"), ("token", "str")]
    text = Writer(Imports(), str).step(constructor, "", 0, 0)
    assert text == 'Guarded(key=SecretStr(environ["KEY"]), other=SecretStr(environ["OTHER"]), token=environ["TOKEN"])'
    assert secret_variable("auth.api_keys['a b']") == "AUTH_API_KEYS__A_B"


def test_constructor_of_what_python_cannot_write_names_the_field():
    step = Guarded(key=SecretStr("a"), client=object())
    assert list(opaque_places(constructor_of(step))) == [("client", "builtins.object")]
    with pytest.raises(DataError, match=r"`client` holds a builtins\.object"):
        Writer(Imports(), str).step(constructor_of(step), "", 0, 0)
    assert not list(opaque_places(constructor_of(Guarded(key=SecretStr("a")))))


def test_constructor_of_a_local_function_is_opaque():
    def local(number: int) -> int:
        return number

    assert list(opaque_places(constructor_of(Everything(folder="x", value=local)))) != []


@pytest.mark.parametrize(
    "hostile",
    [
        {"class": "os:system('rm')", "fields": []},
        {"class": "os.path:join; import os", "fields": []},
        {"class": "m:Step", "fields": [["a", {"name": "os:getcwd()"}]]},
        {"class": "m:Step", "fields": [["a", {"float": "1).__class__"}]]},
        {"class": "m:Step", "fields": [["a", {"call": "builtins:exec()", "args": [], "named": []}]]},
        {"class": "m:Step", "fields": [["a", {"text": "exec('1')"}]]},
        {"class": "m:Step", "fields": [["a", {"secret": "open", "at": "x"}]]},
        {"class": "m:Step", "fields": [["a", [1]]]},
        {"class": "m:Step"},
        {},
    ],
    ids=str,
)
def test_constructor_that_holds_code_is_refused(hostile: dict[str, Any]):
    with pytest.raises(DataError, match="cannot be read"):
        Writer(Imports(), str).step(hostile, "", 0, 0)


def test_imports_of_one_name_are_told_apart_and_keep_clear_of_variables():
    imports = Imports(taken={"train"}, modules={"__main__": "script"})
    assert imports.name("a:Step") == "Step"
    assert imports.name("b:Step") == "Step_2"
    assert imports.name("a:Step.Inner") == "Step.Inner"
    assert imports.name("lib:train") == "train_2"
    assert imports.name("__main__:Own") == "Own"
    assert imports.name("builtins:dict") == "dict"
    assert list(imports.statements().values()) == [
        "from a import Step",
        "from b import Step as Step_2",
        "from lib import train as train_2",
        "from script import Own",
    ]
