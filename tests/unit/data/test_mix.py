"""Mix: every source has its share at every prefix; rows are the sources' own; wrong mixtures are named."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marin
from marin import (
    Context,
    Mix,
    MixTokens,
    Phase,
    Records,
    Sequences,
    Shuffle,
    Step,
    Tokenize,
    Tokens,
    TrainTokenizer,
)
from marin.base.errors import ConfigurationError, DataError, MarinError
from marin.data.loader import SequenceData
from marin.data.mixture import SHARES, SamplePhase, Source, draw, in_samples, numbered
from marin.data.phases import Exhausted
from marin.data.token_files import INDEX, read_index

TEXTS = {name: [f"{name} {number} " * (number % 7 + 2) for number in range(40)] for name in ("web", "code", "books")}
TOKENIZER = TrainTokenizer(
    documents=Records(texts=[text for texts in TEXTS.values() for text in texts]), vocab_size=290
)


def source(name: str, *, context: int = 8, tokenizer: Step[Any] = TOKENIZER) -> Shuffle:
    tokens = Tokenize(documents=Records(texts=TEXTS[name]), tokenizer=tokenizer)
    return Shuffle(tokens=tokens, context=context, seed=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Step[Any]], Any]:
    """Run a step in a store that this module's tests share."""
    store = tmp_path_factory.mktemp("mix")
    return lambda step: marin.run(step, store=store, backend="inline")


def shares_of(parts: list[int]) -> list[int]:
    shares = [part * SHARES // sum(parts) for part in parts]
    shares[int(np.argmax(parts))] += SHARES - sum(shares)
    return shares


@st.composite
def sample_phases(draw_one: st.DrawFn) -> list[SamplePhase]:
    number = draw_one(st.integers(1, 12))
    parts = st.lists(st.one_of(st.just(0), st.integers(1, 100)), min_size=number, max_size=number).filter(any)
    return draw_one(st.lists(st.builds(SamplePhase, st.integers(1, 150), parts.map(shares_of)), min_size=1, max_size=4))


@given(phases=sample_phases())
@settings(max_examples=150)
def test_mix_each_source_is_within_one_sample_of_its_share_at_every_prefix(phases: list[SamplePhase]) -> None:
    sources = draw(phases)
    rates = np.array([phase.shares for phase in phases for _ in range(phase.length)], np.object_)
    due = np.cumsum(rates, axis=0)
    drawn = np.cumsum(sources[:, None] == np.arange(rates.shape[1]), axis=0).astype(np.object_)
    assert (np.abs(drawn * SHARES - due) < SHARES).all()


def test_mix_where_the_largest_deficit_alone_would_fall_behind_by_more_than_one() -> None:
    shares = shares_of([5, 3, 10, 9, 1, 1, 7, 91, 65, 95])
    test = test_mix_each_source_is_within_one_sample_of_its_share_at_every_prefix
    test.hypothesis.inner_test([SamplePhase(400, shares)])  # type: ignore[attr-defined]


@given(phases=sample_phases(), more=st.integers(1, 100))
@settings(max_examples=50)
def test_mix_a_longer_last_phase_leaves_what_came_before(phases: list[SamplePhase], more: int) -> None:
    longer = [*phases[:-1], phases[-1]._replace(length=phases[-1].length + more)]
    before = draw(phases)
    np.testing.assert_array_equal(draw(longer)[: len(before)], before)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data())
@settings(max_examples=100)
def test_mix_each_epoch_of_a_source_has_each_of_its_rows_once(sizes: list[int], data: st.DataObject) -> None:
    drawn = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=60)), np.uint16)
    names = [str(number) for number in range(len(sizes))]
    made = numbered(drawn, sizes, names, exhausted="repeat", seed=3)
    starts = np.cumsum([0, *sizes])
    for number, size in enumerate(sizes):
        rows = made.order[drawn == number] - starts[number]
        assert made.drawn[number] == len(rows)
        assert rows[:size].tolist() == list(range(min(size, len(rows))))
        for at in range(0, len(rows), size):
            epoch = rows[at : at + size].tolist()
            assert len(set(epoch)) == len(epoch)
            assert set(epoch) <= set(range(size))
    stopped = numbered(drawn, sizes, names, exhausted="stop", seed=3)
    np.testing.assert_array_equal(stopped.order, made.order[: len(stopped.order)])
    assert all(count <= size for count, size in zip(stopped.drawn, sizes, strict=True))
    is_over = len(stopped.order) < len(drawn)
    assert not is_over or stopped.drawn[drawn[len(stopped.order)]] == sizes[drawn[len(stopped.order)]]


def data_of(sequences: Sequences) -> SequenceData:
    return SequenceData(sequences.shards, sequences.meta["context"])


def test_mix_gives_rows_of_its_sources_and_says_how_many_epochs(run: Callable[[Step[Any]], Any]) -> None:
    parts = {name: run(source(name)) for name in ("web", "code")}
    sizes = {name: part.meta["num_sequences"] for name, part in parts.items()}
    phases = [
        Phase(length=30, weights={"web": 1.0}),
        Phase(length=2 * sizes["code"], weights={"web": 0.5, "code": 0.5}),
    ]
    mixed = run(Mix(sources={"web": source("web"), "code": source("code")}, phases=phases, exhausted="repeat", seed=0))
    assert mixed.meta["num_sequences"] == len(data_of(mixed)) == 30 + 2 * sizes["code"]
    assert mixed.meta["sources"]["code"]["epochs"] == 1
    web = 30 + sizes["code"]
    assert mixed.meta["sources"]["web"] == {
        "sequences": web,
        "epochs": round(web / sizes["web"], 6),
        "num_target_tokens": parts["web"].meta["num_target_tokens"] * web // sizes["web"],
    }
    batch = data_of(mixed).batch(np.arange(len(data_of(mixed))), segments=True)
    rows = {name: data_of(part).batch(np.arange(sizes[name])) for name, part in parts.items()}
    np.testing.assert_array_equal(batch.tokens[:30], rows["web"].tokens[:30])
    codes = {row.tobytes() for row in rows["code"].tokens} - {row.tobytes() for row in rows["web"].tokens}
    in_order = [row.tobytes() for row in batch.tokens if row.tobytes() in codes]
    assert in_order == [row.tobytes() for row in rows["code"].tokens if row.tobytes() in codes]
    assert {file.url for shard in parts["web"].shards for file in shard.files} <= {
        file.url for shard in mixed.shards for file in shard.files
    }  # nothing is copied


def test_mix_of_a_mix_is_a_mixture_of_its_order(run: Callable[[Step[Any]], Any]) -> None:
    inner = Mix(
        sources={"web": source("web"), "code": source("code")},
        phases=[Phase(length=40, weights={"web": 0.25, "code": 0.75})],
        exhausted="error",
        seed=0,
    )
    outer = Mix(
        sources={"inner": inner, "books": source("books")},
        phases=[Phase(length=60, weights={"inner": 0.5, "books": 0.5})],
        exhausted="error",
        seed=0,
    )
    tokens = data_of(run(outer)).batch(np.arange(60)).tokens
    firsts, books = data_of(run(inner)).batch(np.arange(30)).tokens, data_of(run(source("books"))).batch(np.arange(30))
    expected = {row.tobytes() for row in [*firsts, *books.tokens]}
    assert {row.tobytes() for row in tokens} == expected


def test_mix_stop_ends_with_its_first_exhausted_source_and_error_names_it(run: Callable[[Step[Any]], Any]) -> None:
    size = run(source("code")).meta["num_sequences"]
    sources = {"web": source("web"), "code": source("code")}
    phases = [Phase(length=4 * size, weights={"web": 0.25, "code": 0.75})]
    stopped = run(Mix(sources=sources, phases=phases, exhausted="stop", seed=0)).meta
    assert stopped["sources"]["code"] == stopped["sources"]["code"] | {"sequences": size, "epochs": 1.0}
    with pytest.raises(MarinError, match=f"`code` has {size} sequences, and {3 * size} are asked for"):
        run(Mix(sources=sources, phases=phases, exhausted="error", seed=0))


def test_mix_in_tokens_draws_fewer_of_the_source_whose_sequences_have_more() -> None:
    sources = [Source("a", [], None, 100, 800), Source("b", [], None, 100, 200)]
    (phase,) = in_samples([Phase(length=800, weights={"a": 0.5, "b": 0.5})], sources, "tokens")
    assert phase.length == 50 + 200
    np.testing.assert_allclose(np.array(phase.shares) / SHARES, [0.2, 0.8])


def test_mix_in_tokens_of_a_source_without_targets_names_it() -> None:
    sources = [Source("a", [], None, 100, 800), Source("b", [], None, 100, 0)]
    phases = [Phase(length=800, weights={"a": 0.5, "b": 0.5})]
    with pytest.raises(DataError, match="no token of `b` is a target"):
        in_samples(phases, sources, "tokens")
    assert in_samples(phases, sources, "sequences")[0].length == 800


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"web": 0.0, "code": 1.0}, "the weight of `web` is 0.0, which is not above 0"),
        ({"web": -0.5, "code": 1.5}, "the weight of `web` is -0.5"),
        ({"web": float("nan"), "code": 1.0}, "the weight of `web` is nan"),
        ({"web": 3.0, "code": 4.0}, "the weights sum to 7, not to 1"),
        ({}, "the weights sum to 0"),
    ],
)
def test_mix_weights_that_are_no_shares_are_named(weights: Mapping[str, float], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Phase(length=1, weights=dict(weights))


def test_mix_of_weights_that_sum_to_seven_is_told_the_shares() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Phase(length=1, weights={"web": 3.0, "code": 4.0})
    assert caught.value.hint == "weights={'web': 0.428571, 'code': 0.571429}"
    Phase(length=1, weights={"web": 0.428571, "code": 0.571429})


def test_mix_names_sources_that_phases_and_fields_do_not_share() -> None:
    phases = [Phase(length=1, weights={"wev": 1.0})]
    with pytest.raises(ConfigurationError, match="no source `wev`") as caught:
        Mix(sources={"web": source("web")}, phases=phases, exhausted="stop", seed=0)
    assert caught.value.hint == "did you mean `web`?"
    phases = [Phase(length=1, weights={"web": 1.0})]
    with pytest.raises(ConfigurationError, match="the source `code` has no weight"):
        Mix(sources={"web": source("web"), "code": source("code")}, phases=phases, exhausted="stop", seed=0)
    with pytest.raises(ConfigurationError, match="needs a phase"):
        Mix(sources={}, phases=[], exhausted="stop", seed=0)


class Nothing(Step[Sequences]):
    """Sequences of no shard."""

    like: Step[Sequences]

    def run(self, ctx: Context) -> Sequences:
        return Sequences.write(ctx.output, shards=[], meta={**ctx.load(self.like).meta, "num_sequences": 0})


def test_mix_of_an_empty_source_another_context_or_tokenizer_names_it(run: Callable[[Step[Any]], Any]) -> None:
    other = TrainTokenizer(documents=Records(texts=TEXTS["code"]), vocab_size=275)
    cases = {
        "`code` is empty": Nothing(like=source("web")),
        "`code` has context 16, `web` 8|`code` has context 16": source("code", context=16),
        "`web` has another tokenizer than `code`": source("code", tokenizer=other),
    }
    for complaint, wrong in cases.items():
        phases = [Phase(length=4, weights={"web": 0.5, "code": 0.5})]
        with pytest.raises(MarinError, match=complaint):
            run(Mix(sources={"web": source("web"), "code": wrong}, phases=phases, exhausted="stop", seed=0))


def tokens_of(name: str) -> Tokenize:
    return Tokenize(documents=Records(texts=TEXTS[name]), tokenizer=TOKENIZER)


def mix_tokens(weights: Mapping[str, float], tokens: int, exhausted: Exhausted = "repeat") -> MixTokens:
    sources = {name: tokens_of(name) for name in weights}
    return MixTokens(sources=sources, weights=dict(weights), tokens=tokens, exhausted=exhausted, seed=0)


def ids_of(tokens: Tokens) -> list[bytes]:
    return [value for shard in tokens.shards for value in read_index(shard.file(INDEX))["id"].to_pylist()]


def test_mix_tokens_takes_sources_as_often_as_their_shares_need(run: Callable[[Step[Any]], Any]) -> None:
    web, code = (run(tokens_of(name)) for name in ("web", "code"))
    size = web.meta["tokens"]
    mixed = run(mix_tokens({"web": 0.75, "code": 0.25}, size * 10 // 3))  # web 2.5 times
    drawn = mixed.meta["sources"]["web"]
    assert 2.2 < drawn["epochs"] < 2.8
    ids = ids_of(mixed)
    assert len(set(ids)) == len(ids) == mixed.meta["documents_out"]  # each copy has a place of its own
    assert set(ids_of(web)) <= set(ids)
    assert mixed.meta["tokens"] == sum(each["tokens"] for each in mixed.meta["sources"].values())
    rows = run(Shuffle(tokens=mix_tokens({"web": 0.75, "code": 0.25}, size * 10 // 3), context=8, seed=0))
    assert rows.meta["num_target_tokens"] == mixed.meta["tokens"] - 1
    part = ids_of(run(mix_tokens({"code": 1.0}, code.meta["tokens"] // 3)))
    more = ids_of(run(mix_tokens({"code": 1.0}, code.meta["tokens"] * 2 // 3)))
    assert set(part) < set(more) < set(ids_of(code))


def test_mix_tokens_exhausted_stop_takes_all_less_and_error_names_the_source(run: Callable[[Step[Any]], Any]) -> None:
    size = run(tokens_of("web")).meta["tokens"]
    stopped = run(mix_tokens({"web": 0.5, "code": 0.5}, size * 10, "stop")).meta["sources"]
    assert max(each["epochs"] for each in stopped.values()) == 1
    with pytest.raises(MarinError, match=r"`(web|code)` has [0-9]+ tokens, and [0-9]+ are asked for"):
        run(mix_tokens({"web": 0.5, "code": 0.5}, size * 10, "error"))
    with pytest.raises(ConfigurationError, match="sum to 7") as caught:
        mix_tokens({"web": 3.0, "code": 4.0}, 9)
    assert caught.value.where == "MixTokens.weights"
