"""Split: every document on exactly one side, the same side for ever."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import marin
from marin import Deduplicate, Documents, Exact, MinHash, Split, Step
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


WORDS = [f"word{number}" for number in range(300)]
RULE = MinHash(ngram=2, bands=10, rows=3)


def families(rng: random.Random, count: int) -> list[str]:
    """Texts of which some are near duplicates of others, in chains."""
    texts: list[str] = []
    for number in range(count):
        words = rng.choice(texts).split() if texts and rng.random() < 0.6 else rng.choices(WORDS, k=40)
        words[rng.randrange(40)] = f"new{number}"
        texts.append(" ".join(words))
    return texts


def side(store: str, documents: Step[Documents], keep: Any, **options: Any) -> tuple[set[str], Any]:
    step = Split(documents=documents, keep=keep, **{"fraction": 0.15, "clusters": RULE} | options)
    made = marin.run(step, store=store, backend="inline")
    return set(iter_texts(made.shards)), made.meta


def cluster_of(texts: Sequence[str]) -> dict[str, int]:
    """The cluster of each text, by comparing all pairs: one word of forty makes a similarity of 0.9."""
    labels = {text: number for number, text in enumerate(texts)}
    shingles = {text: set(zip(text.split(), text.split()[1:], strict=False)) for text in texts}
    for one in texts:
        for other in texts:
            if len(shingles[one] & shingles[other]) >= 0.89 * len(shingles[one] | shingles[other]):
                low, high = sorted((labels[one], labels[other]))
                labels = {text: low if label == high else label for text, label in labels.items()}
    return labels


@given(seed=st.integers(0, 10**6))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_split_by_clusters_keeps_each_on_one_side_and_what_is_held_out_stays_so_when_the_corpus_grows(
    corpus: Callable[..., Step[Documents]], seed: int
) -> None:
    rng = random.Random(seed)
    texts = families(rng, 50)
    rng.shuffle(texts)
    named = [(f"id{number}", text) for number, text in enumerate(texts)]
    store = f"memory://split-{seed}"
    small, grown = corpus(named[:15], named[15:30]), corpus(named[40:], named[:15], named[30:40], named[15:30])
    held_before, _ = side(store, small, "held_out", fraction=0.3)
    held, meta = side(store, grown, "held_out", fraction=0.3)
    train, _ = side(store, grown, "train", fraction=0.3)
    assert held_before <= held
    assert held | train == set(texts)
    assert not held & train
    assert {text for text in texts if side_of(text, fraction=0.3, seed=0) == "held_out"} <= held
    labels = cluster_of(texts)
    sides = {label: {text in held for text in texts if labels[text] == label} for label in labels.values()}
    assert all(len(found) == 1 for found in sides.values())
    again, _ = side(store, corpus(*[[each] for each in named]), "held_out", fraction=0.3)
    assert again == held
    assert meta["clusters"] >= meta["held_out_clusters"]


def test_split_by_clusters_counts_what_moves_with_its_cluster(corpus: Callable[..., Step[Documents]]) -> None:
    texts = families(random.Random(5), 60)
    documents = corpus(texts[:30], texts[30:])
    held, meta = side("memory://counted", documents, "held_out")
    train, train_meta = side("memory://counted", documents, "train")
    own = {text for text in texts if side_of(text, fraction=0.15, seed=0) == "held_out"}
    assert own < held
    assert meta["notes"] == train_meta["notes"] == {"with_their_cluster": len(held - own)}
    assert meta["dropped"] == {"train": len(train)}
    assert train_meta["dropped"] == {"held_out": len(held)}
    for rule in (None, Exact()):  # equal texts agree by themselves
        assert side("memory://counted", documents, "held_out", clusters=rule)[0] == own


def test_split_by_clusters_of_one_of_each_is_that_of_the_documents(corpus: Callable[..., Step[Documents]]) -> None:
    one_each = Deduplicate(documents=corpus(families(random.Random(2), 60)), method=RULE)
    assert side("memory://one", one_each, "train")[0] == side("memory://one", one_each, "train", clusters=None)[0]


def test_split_by_clusters_with_a_shard_added_redoes_that_one_alone(corpus: Callable[..., Step[Documents]]) -> None:
    named = [(f"id{number}", text) for number, text in enumerate(families(random.Random(3), 40))]
    old = [named[:20], named[20:]]
    made, again = (
        marin.run(
            Split(documents=documents, keep="train", fraction=0.1, clusters=RULE),
            store="memory://added",
            backend="inline",
        ).shards
        for documents in (corpus(*old), corpus([("new", "another text " * 9)], *old))
    )
    assert [shard.files[0].url for shard in again[1:]] == [shard.files[0].url for shard in made]
