"""Split: every document on exactly one side, the same side for ever."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from marin import Documents, Split, Step
from marin.data.documents import iter_texts
from marin.data.split import side_of, split_shard
from marin.graph.files import Shard


def test_split_sides_are_a_partition_and_counts_balance(
    documents: Callable[..., list[Shard]], run_shards: Callable[..., list[Shard]]
) -> None:
    shards = documents([f"text {number}" for number in range(500)], ["text 3", "other"])
    config = {"fraction": 0.2, "seed": 3}
    train = run_shards(split_shard, shards, keep="train", **config)
    held = run_shards(split_shard, shards, keep="held_out", **config)
    assert sorted([*iter_texts(train), *iter_texts(held)]) == sorted(iter_texts(shards))
    assert not set(iter_texts(train)) & set(iter_texts(held))
    assert 60 < held[0].value["documents_out"] < 140
    assert held[0].value["dropped"] == {"train": train[0].value["documents_out"]}
    assert held[0].value["documents_in"] == 500


@given(text=st.text(), fraction=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
def test_split_larger_fraction_only_moves_documents_out(text: str, fraction: float, seed: int) -> None:
    if side_of(text, fraction=fraction, seed=seed) == "held_out":
        assert side_of(text, fraction=min(1.0, fraction * 1.5), seed=seed) == "held_out"
    assert side_of(text, fraction=0, seed=seed) == "train"


def test_split_of_a_corpus_that_grew_keeps_every_document_on_its_side(
    corpus: Callable[..., Step[Documents]], run_step: Callable[[Step[Documents]], Documents]
) -> None:
    first = [f"text {number}" for number in range(60)]
    grown = [*(f"new {number}" for number in range(40)), *first]

    def sides(texts: list[str]) -> list[set[str]]:
        steps = [Split(documents=corpus(texts), keep=keep, fraction=0.3, seed=1) for keep in ("train", "held_out")]
        return [set(iter_texts(run_step(step).shards)) for step in steps]

    for before, after in zip(sides(first), sides(grown), strict=True):
        assert before
        assert before == after & set(first)
