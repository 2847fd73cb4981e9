"""Steps: their own configuration, wired by type, placed without counting."""

import pickle

import pytest

import marin
from marin import Config, Documents, Records, Several, Split, Step, Table, Tokens
from marin.base.errors import ConfigurationError, WiringError
from marin.graph.step import dependencies


class Count(Step[Table]):
    documents: Step[Documents]
    lowercase: bool = True


class Inner(Config):
    more: Several[Step[Documents]] = ()


class Gather(Step[Table]):
    first: Step[Documents]
    listed: list[Step[Documents]]
    tables: dict[str, Step[Table]]
    inner: Inner = Inner()


class LoudTokens(Tokens):
    pass


class MakeLoud(Step[LoudTokens]):
    pass


class NeedTokens(Step[Table]):
    tokens: Step[Tokens]


WORDS = Records(texts=["a b a"])


def test_step_wired_wrong_names_field_expected_and_got():
    with pytest.raises(WiringError) as caught:
        Count(documents=Count(documents=WORDS))
    assert caught.value.what == (
        "`Count.documents` expects a step that produces Documents, got Count, which produces Table"
    )


@pytest.mark.parametrize("value", [3, "words", Records, None])
def test_step_wired_with_no_step_is_refused(value: object):
    with pytest.raises(WiringError, match="expects a step that produces Documents"):
        Count(documents=value)


def test_step_of_a_subclass_artifact_is_accepted():
    assert NeedTokens(tokens=MakeLoud()).tokens == MakeLoud()


def test_step_keeps_the_identity_of_its_parents():
    assert Count(documents=WORDS).documents is WORDS


def test_dependencies_are_found_in_lists_dicts_and_nested_configuration():
    other, third = Records(texts=["c"]), Records(texts=["d"])
    step = Gather(first=WORDS, listed=[other], tables={"x": Count(documents=WORDS)}, inner=Inner(more=[third]))
    found = dict(dependencies(step))
    assert list(found) == ["first", "listed[0]", "tables['x']", "inner.more[0]"]
    assert found["inner.more[0]"] is third


def test_step_placed_returns_copies_and_survives_pickling():
    placed = WORDS.on(cpus=4, memory="2 GB", retries=1).named("words").at("s3://lab/words")
    again = pickle.loads(pickle.dumps(placed))
    assert (again.placed.resources.cpus, again.placed.resources.memory_bytes) == (4, 2 * 10**9)
    assert (again.placed.name, again.placed.url) == ("words", "s3://lab/words")
    assert WORDS.placed.name is None


def test_step_declares_name_and_artifact():
    assert (marin.TrainTokenizer.step_name(), Count.step_name()) == ("train-tokenizer", "count")
    assert Count(documents=WORDS).artifact_type() is Table


def test_step_without_artifact_type_says_so():
    class Bare(Step):  # type: ignore[type-arg]
        pass

    with pytest.raises(ConfigurationError, match="does not say what it produces"):
        Bare().artifact_type()


def test_step_repr_is_the_constructor_call():
    step = Split(documents=WORDS, keep="train", fraction=0.5)
    assert eval(repr(step), {"Split": Split, "Records": Records}) == step


def test_pick_needs_one_score_a_candidate():
    with pytest.raises(ConfigurationError, match="1 steps in `among` and 0 in `by`"):
        marin.Pick(among=[WORDS], by=[], metric="loss", highest=False)


def test_step_field_that_hides_a_method_is_refused():
    with pytest.raises(ConfigurationError, match="`named`"):

        class Hidden(Step[Table]):
            named: int = 1
