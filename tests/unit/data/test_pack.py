"""Pack: every token in a row or counted; no target across documents; the same bytes for any grouping of the input."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

import marin
from marin import AdamW, Decoder, Mix, Pack, Phase, Records, Shuffle, Step, Tokenize, Train, TrainTokenizer, fs
from marin.base.errors import MarinError
from marin.base.json import Json
from marin.data import packing, shuffle
from marin.data.best_fit import best_fit
from marin.data.hashes import bundle
from marin.data.loader import SequenceData
from marin.data.token_files import DocumentColumns, loss_runs, write_tokens
from marin.graph.files import Shard

METHODS = st.sampled_from(["best_fit", "concat", "one_per_row"])
LONG = st.sampled_from(["fragment", "truncate", "drop"])
Doc = tuple[int, ...]


@given(sizes=st.lists(st.integers(1, 40), max_size=60), capacity=st.integers(40, 60))
@settings(max_examples=100)
def test_best_fit_is_best_fit_decreasing(sizes: list[int], capacity: int) -> None:
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [(room, at) for at, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting)[1]] -= size
        else:
            rooms.append(capacity - size)
    bins = best_fit(np.array(sizes, np.int64), capacity)
    filled = np.bincount(bins, weights=sizes, minlength=len(rooms)) if sizes else []
    assert sorted(capacity - int(size) for size in filled) == sorted(rooms)


@given(positions=st.lists(st.integers(0, 50), max_size=40), context=st.integers(2, 20), method=METHODS, long=LONG)
@settings(max_examples=200)
def test_pack_places_every_position_once_and_no_row_overflows(
    positions: list[int], context: int, method: packing.Method, long: packing.Long
) -> None:
    pieces = packing.pack(np.array(positions, np.int64), context=context, method=method, long=long)
    placed = sorted(
        (document, position)
        for document, offset, length in zip(
            pieces.document.tolist(), pieces.offset.tolist(), pieces.length.tolist(), strict=True
        )
        for position in range(offset, offset + length)
    )
    kept = {"fragment": lambda n: n, "truncate": lambda n: min(n, context), "drop": lambda n: n if n <= context else 0}
    assert placed == [(document, at) for document, n in enumerate(positions) for at in range(kept[long](n))]
    filled = np.bincount(pieces.row, weights=pieces.length)
    assert (filled <= context).all()
    assert (filled > 0).all()
    assert (pieces.length > 0).all()
    if method == "concat":
        assert (filled[:-1] == context).all()
    if method == "best_fit":
        whole = [n for n in map(kept[long], positions) if 0 < n <= context]
        of = np.bincount(pieces.document, minlength=len(positions))
        assert all(of[document] == 1 for document, n in enumerate(positions) if n in whole and kept[long](n) == n)


def write_docs(shard: Shard, output: fs.FolderOutput, *, docs: list[Doc], is_masked: bool) -> Json:
    """Write a token shard; with masks only odd tokens are targets."""
    parts = [np.array(doc, "<u2") for doc in docs]
    ids = np.frombuffer(b"".join(blake3(bytes(doc)).digest(length=16) for doc in docs), np.uint8).reshape(-1, 16)
    loss = [loss_runs(part % 2 == 1) for part in parts] if is_masked else None
    lengths = np.array([len(part) for part in parts], np.int64)
    columns = DocumentColumns(lengths, ids, pa.array(["x"] * len(docs), pa.large_string()), loss)
    return {"tokens": write_tokens(output, parts, np.dtype("<u2"), columns)}


def run_all(folder: str, fn: Callable[..., Json], shards: list[Shard], **config: object) -> list[Shard]:
    made = []
    for shard in shards:
        output = fs.FolderOutput(f"{folder}/{uuid4().hex}")
        value = fn(shard, output, **config)
        made.append(bundle(output.files, value))
    return made


def packed(folder: str, groups: list[list[Doc]], *, bits: int | None, is_masked: bool, **config: Any) -> list[Shard]:
    """Pack in one pass, or with `bits` in two; shards of about 60 tokens."""
    shards = [
        made for docs in groups for made in run_all(folder, write_docs, [Shard("", "")], docs=docs, is_masked=is_masked)
    ]
    plan = shuffle.plan(shards, context=8, shard_tokens=10**9 if bits is None else 1)
    spills = run_all(folder, shuffle.spill_shard, list(plan.spilled), seed=4, partition_bits=bits or 0)
    inputs = packing.document_inputs(spills, plan, shard_tokens=60)
    gathered = run_all(folder, packing.gather_documents, inputs, seed=4)
    return [*gathered, *run_all(folder, packing.pack_shard, packing.pack_inputs(gathered), seed=4, **config)]


DOCS = st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=30).map(tuple), min_size=1, max_size=20, unique=True)


@given(docs=DOCS, method=METHODS, long=LONG, context=st.integers(2, 12), masked=st.booleans(), data=st.data())
@settings(max_examples=60)
def test_pack_rows_hold_documents_with_their_own_targets_and_counts_balance(
    docs: list[Doc], method: str, long: str, context: int, masked: bool, data: st.DataObject
) -> None:
    bits = data.draw(st.sampled_from([None, 0, 3]))
    folder = f"memory://pack/{uuid4().hex}"
    if sum(map(len, docs)) < 2:
        return
    config: dict[str, Any] = {"method": method, "long": long, "context": context}
    shards = packed(folder, [docs], bits=bits, is_masked=masked, **config)
    if bits is not None:  # in any other grouping the same bytes
        cut = data.draw(st.integers(0, len(docs)))
        groups = [group for group in (docs[cut:], docs[:cut]) if group]
        again = packed(folder, groups, bits=5, is_masked=masked, **config)
        assert [shard.digest for shard in again] == [shard.digest for shard in shards]
    values: list[Any] = [shard.value for shard in shards if "rows" in shard.value]
    tokens_in = sum(value["tokens_in"] for value in values)
    dropped = sum(sum(value["tokens_dropped"].values()) for value in values)
    assert tokens_in == sum(map(len, docs)) == sum(value["tokens_out"] for value in values) + dropped
    assert sum(value["documents_in"] for value in values) == len(docs)
    if not sum(value["rows"] for value in values):
        return
    sequences = SequenceData(shards, context)
    batch = sequences.batch(np.random.default_rng(0).permutation(len(sequences)), segments=True)
    pairs = []
    for tokens, targets, segments, positions in zip(*batch, strict=True):
        for mark in np.unique(segments):
            here = segments == mark
            assert positions[here].tolist() == list(range(here.sum()))
            piece, goals = tokens[here].tolist(), targets[here].tolist()
            assert all(goal in (-100, after) for goal, after in zip(goals, piece[1:], strict=False))
            pairs += [(before, goal) for before, goal in zip(piece, goals, strict=True) if goal != -100]
    kept = {
        "fragment": lambda d: d,
        "truncate": lambda d: d[: context + 1],
        "drop": lambda d: d if len(d) <= context + 1 else (),
    }
    expected = [pair for doc in docs for pair in zip(kept[long](doc), kept[long](doc)[1:], strict=False)]
    assert sorted(pairs) == sorted((a, b) for a, b in expected if not masked or b % 2)
    assert sequences.num_target_tokens == len(pairs)
    fs.delete_folder(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Step[Any]], Any]:
    """Run a step in a store that this module's tests share."""
    store = tmp_path_factory.mktemp("pack")
    return lambda step: marin.run(step, store=store, backend="inline")


TEXTS = Records(texts=[f"text {number} " * (number % 9 + 1) for number in range(60)])
TOKENS = Tokenize(documents=TEXTS, tokenizer=TrainTokenizer(documents=TEXTS, vocab_size=290))


def test_pack_another_context_leaves_the_tokens_where_they_are(run: Callable[[Step[Any]], Any]) -> None:
    narrow, wide = (run(Pack(tokens=TOKENS, context=context, seed=0, method="best_fit")) for context in (16, 32))
    urls = [
        {file.url for shard in made.shards for file in shard.files if file.path == "tokens.npy"}
        for made in (narrow, wide)
    ]
    assert urls[0] == urls[1]
    assert narrow.meta["num_target_tokens"] == wide.meta["num_target_tokens"]
    for made in (narrow, wide):
        positions = made.meta["num_sequences"] * made.meta["context"]
        assert positions == made.meta["num_target_tokens"] + made.meta["padding"]


def test_pack_of_documents_that_are_all_too_long_is_an_error_with_counts(run: Callable[[Step[Any]], Any]) -> None:
    with pytest.raises(MarinError, match="no document is left of 60 \\(60 too_long\\)"):
        run(Pack(tokens=TOKENS, context=2, seed=0, method="best_fit", long="drop"))


def test_train_learns_from_packed_rows_and_from_a_mixture_of_them(run: Callable[[Step[Any]], Any]) -> None:
    rows = Pack(tokens=TOKENS, context=16, seed=0, method="best_fit")
    phases = [Phase(length=12, weights={"packed": 0.5, "cut": 0.5})]
    cut = Shuffle(tokens=TOKENS, context=16, seed=0)
    mixed = Mix(sources={"packed": rows, "cut": cut}, phases=phases, exhausted="error", seed=0)
    whole, drawn = run(rows), run(mixed)
    batch = SequenceData(drawn.shards, 16).batch(np.arange(12), segments=True)
    own = {row.tobytes() for row in SequenceData(whole.shards, 16).batch(np.arange(6)).targets}
    assert sum(row.tobytes() in own for row in batch.targets) >= 6
    model = Decoder(layers=1, width=16, heads=2)
    losses = set()
    for data in (rows, mixed):
        for apart in (False, True):
            trained = run(
                Train(data=data, model=model, optimizer=AdamW(lr=1e-3), tokens=96, batch=3, document_mask=apart)
            )
            assert trained.meta["steps"] == 2
            losses.add(trained.meta["loss"])
    assert len(losses) == 4
