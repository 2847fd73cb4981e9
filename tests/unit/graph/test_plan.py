"""Plans: names, states and causes, from what a catalogue knows."""

import enum
import importlib
import json
import ntpath
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin import Config, Documents, FileRef, Placement, Records, Scores, Several, Shard, Step, Table
from marin.base.errors import CanonicalError, ConfigurationError
from marin.graph.explain import changes
from marin.graph.nearest import Earlier
from marin.graph.plan import Plan, PlannedStep, make_plan, resolve
from marin.graph.produced import Produced
from marin.graph.recipe import Recipe, recipe_of, shard_fingerprint


class Optimizer(Config):
    lr: float
    momentum: float = 0.9


class Leaf(Step[Documents]):
    version = 1
    value: int = 0
    workers: Placement[int] = 1


class Fit(Step[Table]):
    version = 1
    data: Several[Step[Documents]]
    optimizer: Optimizer


class Score(Step[Scores]):
    version = 1
    fit: Step[Table]


class Raw(Step[Documents]):
    version = 1
    pattern: Placement[str] = "*"

    def inputs(self) -> tuple[str, ...]:
        return (self.pattern,)


class Anything(Step[Table]):
    version = 1
    value: Any = None


@dataclass(frozen=True)
class Pair:
    left: Any


def no_parent(step: Step[Any]) -> str:
    raise AssertionError(step)


class Known:
    """A catalogue that remembers what a plan calls done, with a chosen output digest."""

    def __init__(self) -> None:
        self.made: dict[str, Produced] = {}
        self.recipes: dict[str, list[tuple[Any, Produced]]] = {}
        self.questions = 0
        self.accepted: dict[str, str] = {}

    def find(self, keys: Sequence[tuple[str, str]]) -> Mapping[str, Produced]:
        self.questions += 1
        return {fingerprint: self.made[fingerprint] for _, fingerprint in keys if fingerprint in self.made}

    def earlier(self, step_name: str) -> Earlier:
        return Earlier(self.recipes.get(step_name, [])[::-1])

    def taken_away(self, step_name: str, fingerprint: str) -> str | None:
        return None

    def definitions(self, step_name: str, fingerprint: str) -> Mapping[str, str]:
        found = [record for record, made in self.recipes[step_name] if made.fingerprint == fingerprint]
        return dict(found[0].get("definitions", {}))

    def make(self, step_name: str, recipe: Recipe, digest: str) -> None:
        produced = Produced("run-1", "2026-01-01", "ada", None, digest, 1, 1.0)
        self.made[recipe.fingerprint] = produced
        self.recipes.setdefault(step_name, []).append((recipe.record, produced))


def plan(steps: Sequence[Step[Any]], known: Known, files: tuple[FileRef, ...] = ()) -> Plan:
    return make_plan(steps, known, lambda patterns: files)


def resolved(planned: Plan, step: PlannedStep) -> Recipe:
    """Return the recipe of a step whose parents are all known."""
    made = [planned.step(name).produced for name in step.parents]
    return resolve(step.step, [each.digest for each in made if each is not None], step.pins, {})


def run_all(steps: Sequence[Step[Any]], known: Known, digest: Any = None, files: tuple[FileRef, ...] = ()) -> list[str]:
    """Run a plan to its end, as an engine would; returns the names of what ran."""
    ran: list[str] = []
    while True:
        planned = plan(steps, known, files)
        ready = [step for step in planned.steps if step.state == "run"]
        if not ready:
            return ran
        for step in ready:
            recipe = resolved(planned, step)
            assert recipe.fingerprint == step.fingerprint
            known.make(step.step.step_name(), recipe, digest(step.step) if digest else recipe.fingerprint)
            ran.append(step.name)


def pipeline(lr: float = 0.1, value: int = 0) -> Step[Scores]:
    return Score(fit=Fit(data=[Leaf(value=value)], optimizer=Optimizer(lr=lr)))


def test_plan_of_an_empty_store_runs_the_first_and_knows_nothing_below():
    states = [(step.name, step.state, step.cause.kind) for step in plan([pipeline()], Known()).steps if step.cause]
    assert states == [("leaf", "run", "new"), ("fit", "unknown", "parent"), ("score", "unknown", "parent")]


def test_plan_after_a_run_is_cached_and_asks_once_a_level():
    known = Known()
    assert run_all([pipeline()], known) == ["leaf", "fit", "score"]
    known.questions = 0
    assert {step.state for step in plan([pipeline()], known).steps} == {"cached"}
    assert known.questions == 3


def test_plan_names_the_field_that_changed_and_the_nearest_result():
    known = Known()
    run_all([pipeline(lr=0.1)], known)
    cause = plan([pipeline(lr=0.2)], known).step("fit").cause
    assert cause is not None
    assert cause.kind == "config"
    assert [(change.path, change.old, change.new) for change in cause.changes] == [("optimizer.lr", 0.1, 0.2)]
    assert cause.nearest is not None
    assert cause.nearest.run == "run-1"


def test_plan_swapped_values_are_no_hit():
    known = Known()
    run_all([Fit(data=[Leaf()], optimizer=Optimizer(lr=1, momentum=2))], known)
    swapped = Fit(data=[Leaf()], optimizer=Optimizer(lr=2, momentum=1))
    assert plan([swapped], known).step("fit").state == "run"


def test_plan_parent_with_equal_output_cuts_off_early():
    known = Known()
    same = lambda step: "same" if isinstance(step, Leaf) else repr(step)  # noqa: E731
    run_all([pipeline(value=1)], known, same)
    assert run_all([pipeline(value=2)], known, same) == ["leaf"]


def test_plan_parent_with_other_output_is_the_cause_by_name():
    known = Known()
    run_all([pipeline(value=1)], known)
    ran = plan([pipeline(value=2)], known)
    assert ran.step("fit").state == "unknown"
    known.make("leaf", resolved(ran, ran.step("leaf")), "other")
    cause = plan([pipeline(value=2)], known).step("fit").cause
    assert cause is not None
    assert (cause.kind, cause.changes[0].path) == ("parent", "data[0]")
    assert "(leaf)" in str(cause.changes[0].new)


def test_plan_placement_and_names_never_count():
    known = Known()
    run_all([Leaf(workers=1)], known)
    moved = Leaf(workers=64).on(cpus=8, gpus=2).named("leaves").at("s3://x/y")
    assert plan([moved], known).step("leaves").state == "cached"


def test_plan_numbers_names_that_recur_and_merges_equal_steps():
    steps = [Leaf(value=1), Leaf(value=2), Leaf(value=1), Leaf(value=3).named("third"), Leaf(value=4)]
    assert [step.name for step in plan(steps, Known()).steps] == ["leaf", "leaf-2", "third", "leaf-3"]


def test_plan_two_steps_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="2 different steps are named 'x'"):
        plan([Leaf(value=1).named("x"), Leaf(value=2).named("x")], Known())


def test_plan_changed_inputs_are_named():
    known = Known()
    run_all([Raw()], known, files=(FileRef("a", "/1/a", 1, "d1"), FileRef("b", "/1/b", 1, "d2")))
    moved = (FileRef("a", "/2/a", 1, "d1"), FileRef("b", "/2/b", 1, "d2"))
    assert plan([Raw(pattern="elsewhere")], known, moved).steps[0].state == "cached"
    cause = plan([Raw()], known, (*moved[:1], FileRef("c", "/2/c", 3, "d3"))).steps[0].cause
    assert cause is not None
    assert [(change.path, change.old is None, change.new is None) for change in cause.changes] == [
        ("b", False, True),
        ("c", True, False),
    ]


def test_plan_result_whose_files_are_gone_is_missing():
    known = Known()
    run_all([Leaf()], known)
    known.made.clear()
    cause = plan([Leaf()], known).steps[0].cause
    assert cause is not None
    assert cause.kind == "missing"


def test_plan_of_a_long_chain_needs_no_recursion():
    class Link(Step[Documents]):
        version = 1
        before: Step[Documents]

    step: Step[Documents] = Leaf()
    for _ in range(3000):
        step = Link(before=step)
    assert len(plan([step], Known()).steps) == 3001


def test_plan_of_many_earlier_results_finds_the_nearest():
    known = Known()
    for lr in range(1, 100):
        run_all([Fit(data=[], optimizer=Optimizer(lr=lr, momentum=lr))], known)
    cause = plan([Fit(data=[], optimizer=Optimizer(lr=95, momentum=0.5))], known).step("fit").cause
    assert cause is not None
    assert [(change.path, change.old, change.new) for change in cause.changes] == [("optimizer.momentum", 95.0, 0.5)]


def test_changes_name_members_as_python_does():
    old, new = (recipe_of(Anything(value=value), no_parent, ()).record for value in ({"web": 1, "a": {1}}, {"web": 2}))
    found = [(change.path, change.old, change.new) for change in changes(old, new)]
    assert found == [("value['a']", [1], None), ("value['web']", 1, 2)]


class Mode(enum.Enum):
    FAST = 1


class User(Step[Table]):
    mode: Mode = Mode.FAST

    def run(self, ctx: object) -> Table:
        raise AssertionError


def test_recipe_of_a_users_step_holds_its_code_and_its_configuration_classes():
    record = recipe_of(User(), lambda step: "", ()).record
    assert {name.rsplit(".", 1)[1] for name in record["definitions"]} == {"User", "Mode"}  # type: ignore[union-attr,arg-type]


@dataclass(frozen=True)
class Window:
    width: int = 3


def test_recipe_of_a_users_step_holds_dataclasses_of_its_configuration():
    class Sliding(Step[Table]):
        window: Any

    names = {
        name.rsplit(".", 1)[1] for name in recipe_of(Sliding(window=Window()), no_parent, ()).record["definitions"]
    }  # type: ignore[union-attr]
    assert names == {"Sliding", "Window"}


@pytest.mark.parametrize("value", [frozenset([Leaf()]), Pair(Leaf())], ids=["set", "dataclass"])
def test_recipe_of_a_step_where_no_dependency_is_seen_is_refused(value: object):
    with pytest.raises(CanonicalError, match="a step in a set or dataclass is not seen as a dependency"):
        plan([Anything(value=value)], Known())


def local(shard: Shard) -> int:
    return 0


def test_recipe_of_a_function_of_ones_own_holds_its_code():
    config: Any = recipe_of(Anything(value=local), no_parent, ()).record["config"]
    assert config["value"]["$function"] == "local"
    assert len(config["value"]["code"]) == 64


@pytest.mark.parametrize("value", [posixpath.join, lambda x: x, len, [Optimizer(lr=1).model_copy]])
def test_recipe_of_a_callable_without_code_of_ones_own_is_refused(value: object):
    with pytest.raises(CanonicalError, match=r"Anything\.value.* cannot be fingerprinted"):
        recipe_of(Anything(value=value), no_parent, ())


def test_recipe_tells_library_classes_of_one_name_apart():
    first, second = type("Same", (), {"__module__": "json"}), type("Same", (), {"__module__": "email"})
    records = [recipe_of(Anything(value=kind), no_parent, ()).fingerprint for kind in (first, second, json.JSONDecoder)]
    assert len(set(records)) == 3


def double(shard: Shard, by: int) -> int:
    return len(shard.name) * by


def test_shard_fingerprint_depends_on_content_and_configuration_not_on_names():
    base = shard_fingerprint(User, double, {"by": 2}, Shard("a", "d1"))
    assert base == shard_fingerprint(User, double, {"by": 2}, Shard("renamed", "d1"))
    assert base != shard_fingerprint(User, double, {"by": 3}, Shard("a", "d1"))
    assert base != shard_fingerprint(User, double, {"by": 2}, Shard("a", "d2"))
    file = FileRef("t", "/x/t", 1, "f1")
    moved = FileRef("t", "/y/t", 1, "f1")
    first, second = (shard_fingerprint(User, double, {"by": each}, Shard("a", "d1")) for each in (file, moved))
    assert first == second


def test_shard_fingerprint_tells_library_functions_of_one_name_apart():
    shard = Shard("a", "d1")
    assert shard_fingerprint(User, posixpath.join, {}, shard) != shard_fingerprint(User, ntpath.join, {}, shard)


def test_shard_fingerprint_holds_the_methods_of_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    found = set()
    for name, body in (("first_settings", "self.by + 1"), ("second_settings", "self.by + 2")):
        (tmp_path / f"{name}.py").write_text(
            "from marin import Config\nclass Settings(Config):\n    by: int = 1\n"
            f"    def go(self):\n        return {body}\n"
        )
        settings = importlib.import_module(name).Settings()
        found.add(shard_fingerprint(User, double, {"by": settings}, Shard("a", "d1")))
    assert len(found) == 2


def test_shard_fingerprint_refuses_a_step_as_configuration():
    with pytest.raises(CanonicalError, match="a step cannot be sent to a map"):
        shard_fingerprint(User, double, {"by": Records(texts=["a"])}, Shard("a", "d1"))


@given(st.dictionaries(st.sampled_from(["lr", "momentum"]), st.floats(0.1, 1), min_size=2, max_size=2))
def test_changes_of_equal_recipes_are_none(values: dict[str, float]):
    step = Fit(data=[], optimizer=Optimizer(**values))
    record = recipe_of(step, lambda parent: "", ()).record
    assert changes(record, recipe_of(step.on(cpus=3), lambda parent: "", ()).record) == ()
