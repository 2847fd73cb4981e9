"""Shuffle: the same bytes however documents are grouped and partitioned; every token there exactly once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.arrays import open_array
from marin.data.hashes import bundle, document_id
from marin.data.loader import SequenceData
from marin.data.shuffle import ShufflePlan, merge_partition, plan, reduce_inputs, spill_shard, total
from marin.data.token_files import INDEX, TOKENS, DocumentColumns, loss_runs, read_index, write_tokens
from marin.graph.files import Shard

DTYPE = np.dtype("<u2")


class Doc(NamedTuple):
    tokens: tuple[int, ...]
    name: str
    source: str
    is_masked: bool = False
    """Only its odd tokens are targets."""


@contextmanager
def fresh_folder() -> Iterator[str]:
    """Give a folder in memory: hundreds of examples would wait for the disk."""
    url = f"memory://shuffle/{uuid4().hex}"
    yield url
    fs.delete_folder(url)


def run(folder: str, fn: Callable[..., Json], shards: Sequence[Shard], **config: object) -> list[Shard]:
    made = []
    for shard in shards:
        output = fs.FolderOutput(f"{folder}/{uuid4().hex}")
        value = fn(shard, output, **config)
        made.append(bundle(output.files, value))
    return made


def write_docs(shard: Shard, output: fs.FolderOutput, *, docs: Sequence[Doc]) -> Json:
    """Write a token shard, as tokenize_shard does; the text of a document is its tokens."""
    ids = b"".join(document_id(repr(doc.tokens), doc.name) for doc in docs)
    tokens = [np.array(doc.tokens, DTYPE) for doc in docs]
    lengths = np.array([len(part) for part in tokens], np.int64)
    masks = [
        loss_runs(part % 2 == 1) if doc.is_masked else loss_runs(part >= 0)
        for doc, part in zip(docs, tokens, strict=True)
    ]
    loss = masks if any(doc.is_masked for doc in docs) else None
    sources = pa.array([doc.source for doc in docs], pa.large_string())
    columns = DocumentColumns(lengths, np.frombuffer(ids, np.uint8).reshape(-1, 16), sources, loss)
    num_tokens = write_tokens(output, tokens, DTYPE, columns)
    return {"tokens": num_tokens}


def shuffle(folder: str, shards: Sequence[Shard], planned: ShufflePlan, seed: int) -> list[Shard]:
    bits = planned.partition_bits
    spills = run(folder, spill_shard, planned.spilled, seed=seed, partition_bits=bits)
    return run(folder, merge_partition, reduce_inputs(spills, planned), seed=seed, context=planned.context)


def token_shards(folder: str, groups: Sequence[Sequence[Doc]]) -> list[Shard]:
    return [shard for docs in groups for shard in run(folder, write_docs, [Shard("", "")], docs=docs)]


def stream_of(shards: Sequence[Shard]) -> list[tuple[bytes, int, list[int]]]:
    """Return all pieces in stored order: document, offset in it, tokens (the overlap at a row's end left out)."""
    pieces = []
    for shard in shards:
        rows = open_array(shard.file(TOKENS)).read(0, shard.value["rows"])
        at: dict[int, int] = {}
        for piece in read_index(shard.file(INDEX)).to_pylist():
            start = at.get(piece["row"], 0)
            tokens = rows[piece["row"], start : start + piece["length"]].tolist()
            at[piece["row"]] = start + piece["length"]
            pieces.append((piece["id"], piece["offset"], tokens))
        full = shard.value["context"] + 1
        assert sorted(at.values(), reverse=True)[: len(at)] == sorted(
            [full] * (len(at) - bool(shard.value["padding"]))
            + [full - shard.value["padding"]] * bool(shard.value["padding"]),
            reverse=True,
        )
    return pieces


DOCS = st.lists(
    st.builds(
        Doc,
        st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=30).map(tuple),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from([False, False, True]),
    ),
    min_size=2,
    max_size=25,
)


def cut_anyhow(data: st.DataObject, docs: list[Doc]) -> list[list[Doc]]:
    docs = data.draw(st.permutations(docs))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(docs)), max_size=4)))
    return [docs[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(docs)], strict=True)]


@given(docs=DOCS, context=st.integers(2, 12), rows=st.integers(1, 6), data=st.data())
@settings(max_examples=60)
def test_shuffle_is_byte_identical_for_any_grouping_and_partitions(
    docs: list[Doc], context: int, rows: int, data: st.DataObject
) -> None:
    seed, bits = data.draw(st.integers(0, 2**32)), data.draw(st.integers(0, 6))
    with fresh_folder() as folder:
        one = token_shards(folder, [docs])
        expected = shuffle(folder, one, plan(one, context=context, shard_tokens=rows * context), seed)
        several = token_shards(folder, cut_anyhow(data, docs))
        planned = plan(several, context=context, shard_tokens=rows * context)
        actual = shuffle(folder, several, replace(planned, one_pass=False, partition_bits=bits), seed)
        assert [shard.digest for shard in actual] == [shard.digest for shard in expected]


@given(docs=DOCS, context=st.integers(2, 12), rows=st.integers(1, 6), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_shuffle_keeps_every_token_and_says_where_it_came_from(
    docs: list[Doc], context: int, rows: int, seed: int
) -> None:
    with fresh_folder() as folder:
        shards = token_shards(folder, [docs[::2], docs[1::2]])
        made = shuffle(folder, shards, plan(shards, context=context, shard_tokens=rows * context), seed)
        texts: dict[bytes, list[int]] = {document_id(repr(doc.tokens), doc.name): list(doc.tokens) for doc in docs}
        for identity, offset, tokens in stream_of(made):
            assert texts[identity][offset : offset + len(tokens)] == tokens
        sequences = SequenceData(made, context)
        batch = sequences.batch(np.arange(len(sequences)))
        targets = batch.targets[batch.targets != -100]
        assert len(targets) == sequences.num_target_tokens
        left = sorted(token for doc in docs for token in doc.tokens if not doc.is_masked or token % 2)
        for token in targets.tolist():
            left.remove(token)
        assert len(left) <= 1  # the stream's first token
        assert left or any(doc.is_masked for doc in docs)


@given(docs=DOCS, context=st.integers(2, 12), rows=st.integers(1, 6))
@settings(max_examples=30)
def test_shuffle_rows_say_which_document_each_position_belongs_to(docs: list[Doc], context: int, rows: int) -> None:
    with fresh_folder() as folder:
        shards = token_shards(folder, [docs])
        made = shuffle(folder, shards, plan(shards, context=context, shard_tokens=rows * context), 0)
        sequences = SequenceData(made, context)
        order = np.random.default_rng(0).permutation(len(sequences))
        batch = sequences.batch(order, segments=True)
        expected: list[list[int]] = []
        for shard in made:
            in_rows: list[list[int]] = [[] for _ in range(shard.value["rows"])]
            for piece in read_index(shard.file(INDEX)).to_pylist():
                in_rows[piece["row"]].append(piece["length"])
            for lengths in in_rows:
                marks = [number for number, length in enumerate(lengths) for _ in range(length)]
                expected.append((marks + [len(lengths)] * context)[:context])
        assert batch.segments.tolist() == [expected[number] for number in order.tolist()]
        positions = [[marks[:at].count(mark) for at, mark in enumerate(marks)] for marks in batch.segments.tolist()]
        assert batch.positions.tolist() == positions
        plain = sequences.batch(order)
        np.testing.assert_array_equal(plain.tokens, batch.tokens)


@given(docs=DOCS, added=DOCS, seed=st.integers(0, 9))
@settings(max_examples=30)
def test_shuffle_added_source_leaves_the_order_of_the_others(docs: list[Doc], added: list[Doc], seed: int) -> None:
    def order(folder: str, groups: Sequence[Sequence[Doc]]) -> list[bytes]:
        shards = token_shards(folder, groups)
        (row,) = shuffle(folder, shards, plan(shards, context=10_000), seed)
        return [piece["id"] for piece in read_index(row.file(INDEX)).to_pylist()]

    with fresh_folder() as folder:
        alone = order(folder, [docs])
        known = set(alone)
        new = {document_id(repr(doc.tokens), doc.name) for doc in added} - known
        both = order(folder, [docs, [doc for doc in added if document_id(repr(doc.tokens), doc.name) in new]])
        assert [identity for identity in both if identity in known] == alone


def test_shuffle_of_another_seed_is_another_order(tmp_path: Path) -> None:
    shards = token_shards(str(tmp_path), [[Doc((number,) * 5, "a", "x") for number in range(200)]])
    planned = plan(shards, context=8)
    orders = [stream_of(shuffle(str(tmp_path), shards, planned, seed)) for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_shuffle_separates_neighbouring_rows_of_a_long_document(tmp_path: Path) -> None:
    docs = [Doc(tuple(range(n, n + 4000)), "a", "x") for n in range(0, 40_000, 4000)]
    shards = token_shards(str(tmp_path), [docs])
    (made,) = shuffle(str(tmp_path), shards, plan(shards, context=16), 0)
    firsts = open_array(made.file(TOKENS)).read(0, made.value["rows"])[:, 0].astype(int)
    assert np.mean(firsts[1:] // 4000 == firsts[:-1] // 4000) < 0.2


def test_shuffle_plan_spills_only_what_does_not_fit_one_shard(tmp_path: Path) -> None:
    shards = token_shards(str(tmp_path), [[Doc((1,) * 101, "a", "x")]])
    assert plan(shards, context=10, shard_tokens=100).spilled == ()
    planned = plan(shards, context=10, shard_tokens=99)
    assert (planned.spilled, planned.num_rows, planned.rows_per_shard) == (tuple(shards), 10, 9)


@pytest.mark.parametrize("tokens", [[], [(7,)]])
def test_shuffle_of_less_than_two_tokens_is_a_data_error(tmp_path: Path, tokens: list[tuple[int, ...]]) -> None:
    shards = token_shards(str(tmp_path), [[Doc(ids, "a", "x") for ids in tokens]])
    with pytest.raises(DataError, match="make no row"):
        plan(shards, context=4)


def test_shuffle_total_carries_the_tokenizer_and_counts(tmp_path: Path) -> None:
    shards = token_shards(str(tmp_path), [[Doc((1,) * 10, "a", "x")]])
    made = shuffle(str(tmp_path), shards, plan(shards, context=4), 5)
    inherited = {"vocab_size": 99, "dtype": "uint16", "eos": "</s>", "eos_id": 2, "bytes": 40}
    meta = total([shard.value for shard in made], {**inherited, "documents_out": 1, "tokens": 10}, context=4, seed=5)
    counted = {"documents": 1, "num_tokens": 10, "num_sequences": 3, "num_target_tokens": 9, "context": 4, "seed": 5}
    assert meta == {**inherited, **counted}
