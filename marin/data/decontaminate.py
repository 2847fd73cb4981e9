"""Evaluation texts inside documents: n-grams of words that both have (Brown et al. 2020, appendix C).

Words are those of `words`: without case, punctuation and white space. An evaluation text that is shorter than n words
counts as one n-gram of its own length, if it has `shortest` words. Invariant: what is found depends on the document
and the set of evaluation texts alone. Dimensions: M n-grams of the index, W words.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from marin import fs
from marin.base.json import Json
from marin.data.arrays import open_array
from marin.data.counts import Counts
from marin.data.documents import DOCUMENTS, SCHEMA, Document, read_batches, write_documents
from marin.data.hashes import bundle, document_id
from marin.data.samples import Samples
from marin.data.token_files import write_array
from marin.data.words import Texts, Words, shingles_of, texts_of, words_of
from marin.graph.files import FileRef, Output, Shard

Action = Literal["drop", "mask", "report"]

NGRAMS = "ngrams.npy"
EVALUATION = "evaluation.parquet"
SPANS = "spans.parquet"
CONTAMINATED = "contaminated.jsonl"

SPAN_SCHEMA = pa.schema(
    [
        ("id", pa.large_string()),
        ("source", pa.large_string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("evaluation_id", pa.large_string()),
        ("evaluation_source", pa.large_string()),
    ]
)
"""A row for each stretch of a document that stands in an evaluation text; characters [start, end) of the document.

An n-gram that is in several evaluation texts is said to be of the one with the lowest 128-bit id.
"""

_U64 = np.dtype("<u8")
_FILTER_SLOTS = 32
"""Places for each n-gram in a table of hashes' top bits: one look-up of 32 goes on to the sorted hashes for nothing."""


class Span(NamedTuple):
    """Bytes [start, end) of a document that stand in evaluation text number `evaluation`."""

    start: int
    end: int
    evaluation: int


class _Index(NamedTuple):
    """`ngrams` by length: sorted hashes, and evaluation texts' numbers; `maybe`: top bits of hashes that occur."""

    ngrams: dict[int, tuple[np.ndarray, np.ndarray]]
    maybe: np.ndarray
    ids: list[str]
    sources: list[str]


def index_input(against: Iterable[Sequence[Shard]]) -> Shard:
    """Return the input of `index_ngrams`: all files of all evaluation texts, in an order of their own."""
    files = [shard.file(DOCUMENTS) for shards in against for shard in shards]
    return bundle(sorted(files, key=lambda file: file.digest))


def index_ngrams(shard: Shard, output: Output, *, ngram: int, shortest: int) -> Json:
    """Write `ngrams.npy` uint64 [M, 3] (length, hash, number of the text), sorted, and the texts' names.

    Returns counts. Holds all n-grams in memory, some 100 bytes a word.
    """
    documents = sorted(_evaluation_documents(shard.files), key=lambda document: document_id(document.text, document.id))
    rows = [np.empty((0, 3), _U64)]
    too_short = 0
    columns = pa.chunked_array([pa.array([document.text for document in documents], pa.large_string())])
    for first, block in texts_of(columns).blocks():
        words = words_of(block)
        lengths = np.diff(words.bounds)
        too_short += int((lengths < min(shortest, ngram)).sum())
        shingles = shingles_of(words, ngram)
        length = np.minimum(lengths, ngram)[shingles.texts]
        found = np.stack([length.astype(_U64), shingles.hashes, (shingles.texts + first).astype(_U64)], axis=1)
        rows.append(found[length >= min(shortest, ngram)])
    table = np.unique(np.concatenate(rows), axis=0)
    new = np.append(True, (table[1:, :2] != table[:-1, :2]).any(axis=1))[: len(table)]
    table = table[new]
    write_array(output, NGRAMS, [table], table.shape, _U64)
    names = {
        name: pa.array([getattr(document, name) for document in documents], pa.large_string())
        for name in ("id", "source")
    }
    with output.open(EVALUATION) as file:
        parquet.write_table(pa.table(names), file, compression="zstd", write_statistics=False)
    return {"texts": len(documents), "too_short": too_short, "ngrams": len(table)}


def decontaminate_shard(
    shard: Shard, output: Output, *, ngrams: FileRef, evaluation: FileRef, action: Action, mask: str, samples: int
) -> Json:
    """Write the documents, without, masked or as they are where they hold evaluation texts, and `spans.parquet`.

    Returns counts that balance, and `contaminated`: documents by source of the evaluation text.
    """
    index = _open_index(ngrams, evaluation)
    result, shown = Counts(), Samples(samples)
    by_source: dict[str, int] = {}
    spans: list[tuple[Any, ...]] = []

    def kept() -> Iterator[Document]:
        for batch in read_batches(shard, SCHEMA.names):
            found = find_spans(texts_of(batch.column("text")), index)
            for row, document in enumerate(map(Document, *(column.to_pylist() for column in batch.columns))):
                hits = found.get(row, [])
                spans.extend(_span_rows(document, hits, index))
                for source in {index.sources[hit.evaluation] for hit in hits}:
                    by_source[source] = by_source.get(source, 0) + 1
                if hits:
                    result.notes["contaminated"] += 1
                    _, _, start, end, *which = spans[-len(hits)]
                    shown.offer("contaminated", document, start=start, end=end, evaluation=which)
                yield from _acted(document, hits, action, mask, result)

    write_documents(output, kept())
    columns = zip(*spans, strict=True) if spans else [[]] * len(SPAN_SCHEMA)
    table = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SPAN_SCHEMA, strict=True)], schema=SPAN_SCHEMA
    )
    with output.open(SPANS) as file:
        parquet.write_table(table, file, compression="zstd", write_statistics=False)
    shown.write(output, CONTAMINATED)
    return {**result.record(), "contaminated": dict(sorted(by_source.items())), "spans": len(spans)}


def find_spans(texts: Texts, index: _Index) -> dict[int, list[Span]]:
    """Return, for each text with any, its stretches that are in an evaluation text, in order; they may overlap."""
    found: dict[int, list[Span]] = {}
    shift = np.uint64(65 - len(index.maybe).bit_length())
    for first, block in texts.blocks():
        words = words_of(block)
        for length, (hashes, owners) in index.ngrams.items():
            shingles = shingles_of(words, length)
            full = np.diff(words.bounds)[shingles.texts] >= length
            likely = np.flatnonzero(full & index.maybe[shingles.hashes >> shift])
            place = np.minimum(np.searchsorted(hashes, shingles.hashes[likely]), len(hashes) - 1)
            hit = hashes[place] == shingles.hashes[likely]
            for at, owner in zip(likely[hit].tolist(), owners[place[hit]].tolist(), strict=True):
                _add_span(
                    found, int(shingles.texts[at]), _span(words, block, shingles.firsts[at], length, owner), first
                )
    return {text: _merged(spans) for text, spans in sorted(found.items())}


def read_spans(shards: Iterable[Shard]) -> list[dict[str, Any]]:
    """Return all spans of a decontaminated artifact's shards, as dicts of the columns of `SPAN_SCHEMA`."""
    rows: list[dict[str, Any]] = []
    for shard in shards:
        rows += _read_table(shard.file(SPANS)).to_pylist()
    return rows


def _evaluation_documents(files: Sequence[FileRef]) -> Iterator[Document]:
    for file in files:
        for batch in read_batches(Shard("", "", (file,)), SCHEMA.names):
            yield from map(Document, *(column.to_pylist() for column in batch.columns))


@lru_cache(maxsize=1)
def _open_index(ngrams: FileRef, evaluation: FileRef) -> _Index:
    array = open_array(ngrams)
    table = array.read(0, array.shape[0])
    lengths, first = np.unique(table[:, 0], return_index=True)
    bounds = pairwise([*first.tolist(), len(table)])
    parts = {
        int(length): (np.ascontiguousarray(table[begin:end, 1]), table[begin:end, 2])
        for length, (begin, end) in zip(lengths, bounds, strict=True)
    }
    bits = min(30, max(10, (len(table) * _FILTER_SLOTS).bit_length()))
    maybe = np.zeros(1 << bits, bool)
    maybe[table[:, 1] >> np.uint64(64 - bits)] = True
    names = _read_table(evaluation)
    return _Index(parts, maybe, names["id"].to_pylist(), names["source"].to_pylist())


def _read_table(file: FileRef) -> pa.Table:
    with fs.open_file(file) as stream, parquet.ParquetFile(stream, pre_buffer=False) as table:
        return table.read(use_threads=False)


def _span(words: Words, block: Texts, first: int, length: int, owner: int) -> tuple[int, Span]:
    text = int(np.searchsorted(block.offsets, words.begins[first], side="right")) - 1
    begin = int(block.offsets[text])
    return text, Span(int(words.begins[first]) - begin, int(words.ends[first + length - 1]) - begin, owner)


def _add_span(found: dict[int, list[Span]], text: int, located: tuple[int, Span], first: int) -> None:
    assert located[0] == text
    found.setdefault(first + text, []).append(located[1])


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Return spans of one evaluation text that overlap as one; in order of start."""
    merged: dict[int, list[Span]] = {}
    for span in sorted(spans):
        others = merged.setdefault(span.evaluation, [])
        if others and span.start <= others[-1].end:
            others[-1] = others[-1]._replace(end=max(others[-1].end, span.end))
        else:
            others.append(span)
    return sorted(span for others in merged.values() for span in others)


def _span_rows(document: Document, hits: Sequence[Span], index: _Index) -> Iterator[tuple[Any, ...]]:
    encoded = document.text.encode() if hits else b""
    for hit in hits:
        start, end = (len(encoded[:at].decode()) for at in (hit.start, hit.end))
        yield document.id, document.source, start, end, index.ids[hit.evaluation], index.sources[hit.evaluation]


def _acted(document: Document, hits: Sequence[Span], action: Action, mask: str, result: Counts) -> Iterator[Document]:
    """Yield what is left of a document, and count it."""
    if hits and action == "drop":
        result.drop("contaminated")
        return
    if hits and action == "mask":
        document = document._replace(text=_masked(document.text.encode(), hits, mask))
    if document.text:
        result.keep(document.text)
        yield document
    else:
        result.drop("empty")


def _masked(encoded: bytes, hits: Sequence[Span], mask: str) -> str:
    parts, at = [], 0
    for start, end in _joined(hits):
        parts += [encoded[at:start], mask.encode()]
        at = end
    return b"".join([*parts, encoded[at:]]).decode()


def _joined(hits: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the bytes that any span covers, as ranges in order."""
    ranges: list[tuple[int, int]] = []
    for start, end, _ in sorted(hits):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((start, end))
    return ranges
