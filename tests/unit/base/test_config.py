"""Configuration: strict, frozen, and helpful when it is wrong."""

import pickle
from typing import Annotated

import pytest
from pydantic import Field

from marin.base.config import Config, ElideIf, Placement, Several, Was, placement_fields
from marin.base.errors import ConfigurationError, MarinError, WiringError
from marin.base.units import format_count, format_seconds, format_size, parse_size


class Optimizer(Config):
    lr: float = Field(gt=0)
    betas: Several[float] = (0.9, 0.95)


class Trainer(Config):
    optimizer: Optimizer
    steps: int = 10


def test_config_misspelt_option_names_the_near_one():
    with pytest.raises(ConfigurationError) as caught:
        Trainer(optimizer=Optimizer(lr=1), stpes=3)
    assert "stpes" in caught.value.what
    assert caught.value.hint == "did you mean `steps`?"


@pytest.mark.parametrize("values", [{"lr": "0.1"}, {"lr": -1}, {}, {"lr": 1, "betas": "ab"}])
def test_config_wrong_value_is_refused(values: dict[str, object]):
    with pytest.raises(ConfigurationError, match=r"Optimizer"):
        Optimizer(**values)


def test_config_is_frozen_and_makes_lists_tuples_where_several_are_meant():
    made = Optimizer(lr=1, betas=[0.9, 0.99])
    assert made == Optimizer(lr=1.0, betas=(0.9, 0.99))
    with pytest.raises(Exception, match="frozen"):
        made.lr = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("annotation", "hint"),
    [
        (list[Placement[int]], "mark the whole field: `n: Placement[...]`"),
        (Placement[int] | str, "mark the whole field: `n: Placement[...]`"),
        (dict[str, tuple[Placement[int], ...]], "mark the whole field: `n: Placement[...]`"),
        (Annotated[int, ElideIf(0)] | None, "mark the whole field: `n: Annotated[..., ElideIf(...)]`"),
        (list[Annotated[int, Was("m")]], "mark the whole field: `n: Annotated[..., Was(...)]`"),
    ],
)
def test_config_mark_that_would_mean_nothing_is_refused_when_the_class_is_made(annotation: object, hint: str):
    with pytest.raises(ConfigurationError, match="stands inside the type, where it means nothing") as caught:
        type("Made", (Config,), {"__annotations__": {"n": annotation}, "__module__": __name__})
    assert caught.value.hint == hint


class Ahead(Config):
    sizes: "list[Late]"


Late = Placement[int]


def test_config_mark_behind_a_forward_reference_is_refused_at_the_latest_when_it_is_fingerprinted():
    Ahead.model_rebuild()
    with pytest.raises(ConfigurationError, match="stands inside the type"):
        placement_fields(Ahead)


def test_config_placement_fields_are_those_marked_alone_or_beside_none():
    class Loader(Config):
        a: Placement[int] = 1
        b: Placement[int] | None = None
        c: Placement[int | None] = None
        d: int = 1

    assert placement_fields(Loader) == {"a", "b", "c"}


def test_error_survives_pickling_with_its_hint():
    error = pickle.loads(pickle.dumps(WiringError("what", where="a.b", hint="do this")))
    assert (error.what, error.where, error.hint, error.exit_code) == ("what", "a.b", "do this", 2)
    assert isinstance(error, MarinError)
    assert str(error) == "what\n  at   a.b\nhint: do this"


@pytest.mark.parametrize(("text", "size"), [("700 GB", 700 * 10**9), ("64MiB", 64 * 2**20), ("1.5k", 1500), ("12", 12)])
def test_parse_size_reads_what_people_write(text: str, size: int):
    assert parse_size(text) == size


def test_parse_size_of_nonsense_is_refused():
    with pytest.raises(ConfigurationError, match="is not a size"):
        parse_size("lots")


def test_format_units_are_short():
    assert [format_size(n) for n in (5, 1300, 2.5e9)] == ["5 B", "1.3 kB", "2.5 GB"]
    assert [format_seconds(n) for n in (0.44, 12.3, 200, 7500)] == ["0.4 s", "12 s", "3 min 20 s", "2 h 5 min"]
    assert [format_count(n) for n in (7, 1200, 3_400_000)] == ["7", "1.2k", "3.4M"]
