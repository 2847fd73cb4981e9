"""Every keyed field of every step of marin changes the fingerprint, and no field of placement does.

Generic over pydantic's fields: a new field or step is tried without being named here. A type that this file cannot make
two values of fails the test, so that nobody adds one unseen.
"""

import enum
import sys
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest.mock import patch

import pytest
from pydantic import BaseModel
from pydantic._internal._model_construction import init_private_attributes

import marin
from marin import Artifact, Step
from marin.base.config import placement_fields
from marin.graph.recipe import recipe_of
from marin.train.config import TrainConfig

STEPS = {
    name: kind
    for name in sorted(vars(marin))
    if isinstance(kind := getattr(marin, name), type) and issubclass(kind, Step) and kind is not Step
}


class Given(Step[Artifact]):
    """Stands for any parent."""

    version = 1
    number: int


def length(text: str) -> dict[str, float]:
    return {"length": len(text)}


def vowels(text: str) -> dict[str, float]:
    return {"vowels": sum(text.count(vowel) for vowel in "aeiou")}


def values(annotation: Any) -> list[Any]:
    """Different values of a type; one for a type that has only one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(arguments[0])
    if origin is Literal:
        return list(arguments)
    if origin in (Union, UnionType):
        return [value for member in arguments for value in values(member)]
    if origin is Step or annotation is Step:
        return [Given(number=1), Given(number=2)]
    if origin in (tuple, list, set, frozenset):
        some = values(arguments[0])
        return [
            origin(some[:1]),
            origin(some[:2]),
            *([origin(some[1::-1])] if origin in (tuple, list) else []),
        ]
    if origin is Callable:
        return [length, vowels]
    if origin in (dict, Mapping):
        keys, members = values(arguments[0]), values(arguments[1])
        return [{keys[0]: members[0]}, {keys[0]: members[1]}, {keys[1]: members[0]}]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return list(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        first = made(annotation)
        return [first, *(copy for _, placed, copy in mutated(first) if not placed and not isinstance(copy, tuple))][:2]
    plain: dict[Any, list[Any]] = {
        int: [1, 2], float: [0.25, 0.5], bool: [True, False], str: ["a", "b"], bytes: [b"a", b"b"], type(None): [None],
        Any: [1, "a"],
    }  # fmt: skip
    assert annotation in plain, f"no values of the type {annotation!r}: add them here"
    return plain[annotation]


def made(kind: type[BaseModel]) -> Any:
    """An instance with the first value of each field; nothing is checked, for only the key is looked at."""
    with patch.object(kind, "model_post_init", init_private_attributes):
        return kind.model_construct(**{name: values(field.annotation)[0] for name, field in kind.model_fields.items()})


def mutated(model: BaseModel) -> Iterator[tuple[str, bool, Any]]:
    """Yield each field's path, whether it is one of placement, and a copy of the model that differs there alone."""
    placed = placement_fields(type(model))
    for name, field in type(model).model_fields.items():
        now = getattr(model, name)
        for value in values(field.annotation):
            if type(value) is not type(now) or value != now:
                yield name, name in placed, model.model_copy(update={name: value})
        for inner in values(field.annotation):
            if isinstance(inner, BaseModel) and not isinstance(inner, Step):
                held = model.model_copy(update={name: inner})
                for path, inside, changed in mutated(inner):
                    yield f"{name}:{type(inner).__name__}.{path}", name in placed or inside, (
                        held, model.model_copy(update={name: changed})
                    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def required(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Something of the name and a version of each distribution that a step requires and that is not installed here."""
    folder = tmp_path_factory.mktemp("distributions")
    for distribution in {distribution for kind in STEPS.values() for distribution in kind.requires}:
        described = folder / f"{distribution.replace('-', '_')}-0.0.1.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.0.1\n")
    sys.path.append(str(folder))  # behind what is installed
    yield
    sys.path.remove(str(folder))


def fingerprint(step: Step[Any]) -> str:
    return recipe_of(step, fingerprint, ()).fingerprint


CASES = [
    pytest.param(before, after, placed, id=f"{name}.{path}")
    for name, kind in STEPS.items()
    for path, placed, change in mutated(made(kind))
    if path != "url" or change.url is not None  # without a place a step reads what another made: that counts
    for before, after in [change if isinstance(change, tuple) else (made(kind), change)]
]


@pytest.mark.parametrize(("before", "after", "placed"), CASES)
def test_fingerprint_changes_with_a_keyed_field_and_never_with_one_of_placement(
    before: Step[Any], after: Step[Any], placed: bool
):
    assert (fingerprint(before) == fingerprint(after)) is placed


def test_every_field_of_every_step_was_tried():
    tried = {case.id.split(":")[0] for case in CASES if case.id}
    single = {"kind"}  # the only value of a Literal that tells configurations apart
    expected = {f"{name}.{field}" for name, kind in STEPS.items() for field in kind.model_fields if field not in single}
    assert expected <= tried
    assert len(STEPS) >= 12
    assert any(":" in str(case.id) for case in CASES)


def test_placement_of_training_is_what_it_says():
    seen = {"log_every", "validate_every", "validate_sequences", "prompts", "sample_every", "sample_tokens"}
    assert placement_fields(TrainConfig) == {
        "micro_batch",
        "parallel",
        "peak_flops",
        "profile",
        "recompute",
        "checkpoint_seconds",
        "checkpoint_steps",
        "keep",
        *seen,
    }
