"""Deduplication: one of each cluster stays, the same one however documents are grouped."""

import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import marin
from marin import Deduplicate, Documents, Exact, MarinError, MinHash, fs
from marin.data import clusters
from marin.data.clusters import connected, pair_part, plan_parts
from marin.data.documents import Document, read_documents
from marin.data.hashes import document_id
from marin.data.signatures import BUCKETS, sign_shard

Item = tuple[str, str]

WORDS = [f"word{number}" for number in range(400)]


def text_of(seed: int, length: int = 120) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def changed(text: str, *places: int) -> str:
    words = text.split()
    for place in places:
        words[place] = f"new{place}"
    return " ".join(words)


def kept(documents: Documents) -> set[tuple[str, str, str]]:
    return {document[:3] for shard in documents.shards for document in read_documents(shard)}


def grouped(items: Sequence[Any], seed: int) -> list[list[Any]]:
    rng = random.Random(seed)
    shuffled = rng.sample(items, len(items))
    groups: list[list[Any]] = [[] for _ in range(rng.randint(1, 5))]
    for item in shuffled:
        rng.choice(groups).append(item)
    return groups


items = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["x", "y", "", "\0", "é", "e\u0301"]),
        st.sampled_from("st"),
    ),
    min_size=1,
    max_size=14,
)


@given(items=items, seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exact_keeps_the_lowest_of_each_text_however_grouped(
    corpus: Callable[..., Any], items: list[tuple[str, str, str]], seed: int
):
    made = marin.run(
        Deduplicate(documents=corpus(*grouped(items, seed)), method=Exact()), store="memory://dedup", backend="inline"
    )
    lowest: dict[str, bytes] = {}
    for name, text, _ in items:
        key = document_id(text, name)
        lowest[text] = min(key, lowest.get(text, key))
    left = kept(made)
    assert len(left) == len(lowest) == made.meta["documents_out"]
    assert {text: document_id(text, name) for name, text, _ in left} == lowest
    assert made.meta["dropped"] == ({"duplicate": len(items) - len(lowest)} if len(items) > len(lowest) else {})
    again = marin.run(
        Deduplicate(documents=corpus(*grouped(items, seed + 1)), method=Exact()),
        store="memory://dedup",
        backend="inline",
    )
    assert kept(again) == left


def test_minhash_finds_near_duplicates_and_leaves_others(
    corpus: Callable[..., Any], run_step: Callable[..., Any], read_lines: Callable[..., Any]
):
    texts = [text_of(seed) for seed in range(30)]
    near = [changed(text, 60).upper().replace(" ", ",  ") for text in texts[:10]]
    documents = corpus(texts[:20], [*near, *texts[20:]], [])
    made = run_step(Deduplicate(documents=documents, method=MinHash()))
    assert made.meta["documents_out"] == 30
    assert made.meta["dropped"] == {"duplicate": 10}
    assert made.meta["clusters"] == 10
    assert made.meta["largest_cluster"] == 2
    assert len(read_lines(made, "removed.jsonl")) == 10
    shown = read_lines(made, "clusters.jsonl")
    assert len(shown) == 20
    names = {document.id for shard in made.shards for document in read_documents(shard)}
    for cluster in shown:
        first, second = cluster["members"]
        assert first["id"] in names
        assert second["id"] not in names
        assert {int(first["id"]) % 20, int(second["id"]) % 20} == {int(first["id"]) % 20}


def test_minhash_chain_of_neighbours_is_one_cluster(corpus: Callable[..., Any], run_step: Callable[..., Any]):
    chain = [text_of(1, 200)]
    for step in range(12):
        chain.append(changed(chain[-1], *range(step * 16, step * 16 + 4)))
    rule = MinHash(bands=40, rows=3)
    ends = run_step(Deduplicate(documents=corpus([chain[0], chain[-1]]), method=MinHash(bands=20, rows=8)))
    assert ends.meta["documents_out"] == 2
    made = [run_step(Deduplicate(documents=corpus(*groups), method=rule)) for groups in ([chain], [[c] for c in chain])]
    for one in made:
        assert one.meta["documents_out"] == 1
        assert one.meta["clusters"] == 1
        assert one.meta["largest_cluster"] == 13


@given(seed=st.integers(0, 10**6))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_minhash_keeps_the_same_documents_however_grouped(corpus: Callable[..., Any], seed: int):
    rng = random.Random(seed)
    base = [text_of(number, 40) for number in range(6)]
    texts = [changed(rng.choice(base), *rng.sample(range(40), rng.randint(0, 3))) for _ in range(30)]
    named = [(f"id{number}", text) for number, text in enumerate(texts)]
    rule = MinHash(ngram=2, bands=10, rows=3, seed=seed)
    left = [
        kept(
            marin.run(
                Deduplicate(documents=corpus(*grouped(named, order)), method=rule),
                store="memory://near",
                backend="inline",
            )
        )
        for order in (seed, seed + 1)
    ]
    assert left[0] == left[1]
    assert 1 <= len(left[0]) <= 30


def test_minhash_of_texts_without_words_or_spaces(corpus: Callable[..., Any], run_step: Callable[..., Any]):
    japanese = "東京は今日も晴れていて、明日も晴れるでしょう。" * 3
    group = [
        "",
        "\0",
        " . ",
        "\u0301",
        "שלום עולם",
        "שלום עולם!",
        japanese,
        japanese + "雨",
        "x" * 1_000_000,
        "X" * 1_000_000,
    ]
    made = run_step(Deduplicate(documents=corpus(group), method=MinHash(ngram=3)))
    texts = [text for _, text, _ in kept(made)]
    assert {"", "\0", " . ", "\u0301"} <= set(texts)  # no word, nothing to compare
    assert len(texts) == 4 + 3


def test_minhash_of_characters_finds_what_words_miss(corpus: Callable[..., Any], run_step: Callable[..., Any]):
    thai = "".join(random.Random(3).choices("กขคงจฉชซญดตถทธนบปผพฟภมยรลวศสหอ", k=400))
    documents = corpus([thai, thai[:200] + "ก" + thai[200:]])
    by_words = run_step(Deduplicate(documents=documents, method=MinHash()))
    by_characters = run_step(Deduplicate(documents=documents, method=MinHash(unit="characters", ngram=13)))
    assert (by_words.meta["documents_out"], by_characters.meta["documents_out"]) == (2, 1)


def test_deduplicate_with_a_shard_added_signs_and_rewrites_that_one_alone(
    corpus: Callable[..., Any], run_step: Callable[..., Any]
):
    groups = [[f"text {number} {part}" for part in range(4)] + ["shared"] for number in range(6)]
    before = run_step(Deduplicate(documents=corpus(*groups), method=Exact()))
    named = [[(f"{at * 5 + row}", text) for row, text in enumerate(group)] for at, group in enumerate(groups)]
    after = run_step(Deduplicate(documents=corpus(*named, [("new", "new text")]), method=Exact()))
    assert {shard.digest for shard in before.shards} < {shard.digest for shard in after.shards}
    assert len(after.shards) == 7


def test_pairs_of_any_number_of_tasks_are_the_same(documents: Callable[..., Any], run_shards: Callable[..., Any]):
    texts = [f"text {number % 50}" for number in range(200)]
    signed = run_shards(sign_shard, documents(texts[:120], texts[120:]), rule=Exact())
    found = []
    for task_bytes in (2**26, 2**11, 100):
        tasks = plan_parts(signed, task_bytes)
        paired = run_shards(pair_part, tasks)
        files = [fs.read_file(shard.file(clusters.EDGES)) for shard in paired]
        found.append(
            sorted(
                tuple(row)
                for data in files
                for row in np.frombuffer(data[data.index(b"\n") + 1 :], "<u8").reshape(-1, 2)
            )
        )
    assert len(tasks) > 40
    assert len(found[0]) == 150
    assert found[0] == found[1] == found[2]


def test_pairs_of_damaged_buckets_are_refused(documents: Callable[..., Any], run_shards: Callable[..., Any]):
    signed = run_shards(sign_shard, documents(["a", "b", "a"]), rule=Exact())
    path = fs.local_path(signed[0].file(BUCKETS).url)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(MarinError, match="does not hold what was written"):
        run_shards(pair_part, plan_parts(signed))


@given(edges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_connected_is_the_closure_of_the_edges(edges: list[tuple[int, int]]):
    groups = {node: {node} for node in range(31)}
    for left, right in edges:
        joined = groups[left] | groups[right]
        for node in joined:
            groups[node] = joined
    sides = np.array(edges, dtype=np.int64).reshape(-1, 2)
    assert connected(sides[:, 0], sides[:, 1], 31).tolist() == [min(groups[node]) for node in range(31)]


def test_deduplicate_copies_that_agree_in_all_leave_exactly_one(
    corpus: Callable[..., Any], run_step: Callable[..., Any], read_lines: Callable[..., Any]
):
    copy = ("same", "text", "source")
    made = run_step(Deduplicate(documents=corpus([copy, copy], [copy], [copy, copy]), method=Exact(), samples=1))
    assert [Document(*copy)] == [document for shard in made.shards for document in read_documents(shard)]
    assert read_lines(made, "removed.jsonl") == [
        {"reason": "duplicate", "order": ANY, "id": "same", "source": "source", "cluster": 5, "text": "text"}
    ]
