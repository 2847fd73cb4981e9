"""Buckets of documents: the first pass of deduplication, a shard of documents to sorted records.

Documents that share a bucket (the same text, or the same band of a MinHash signature) are duplicates. Invariant: the
files are a function of the shard and the rule. Dimensions: N documents, R records.

`buckets.npy` uint64 [R, 3]: two hashes of the bucket and the row, sorted. `parts.npy` uint64 [PARTS + 1, 2]: at which
record each part of the range of hashes begins, and a checksum of its records, so that a part can be read alone.
`keys.npy` uint64 [N, 3]: the document's 128-bit id and a hash of source and meta: the total order of documents.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import Json
from marin.data.arrays import open_array
from marin.data.documents import read_batches
from marin.data.duplicate_rules import DuplicateRule, MinHash
from marin.data.hashes import encoded_document_id
from marin.data.minhash import bands_of, sign_texts
from marin.data.token_files import write_array
from marin.data.words import Texts, texts_of
from marin.graph.files import FileRef, Output, Shard

BUCKETS = "buckets.npy"
PARTS_FILE = "parts.npy"
KEYS = "keys.npy"

PARTS = 1024
"""How finely buckets can be divided among tasks."""

RECORD_BYTES = 24
_U64 = np.dtype("<u8")


def sign_shard(shard: Shard, output: Output, *, rule: DuplicateRule) -> Json:
    """Write the buckets and the keys of the shard's documents; returns the number of both.

    Holds `RECORD_BYTES` for each document and band in memory.
    """
    records, keys = [np.empty((0, 3), _U64)], [np.empty((0, 3), _U64)]
    row = 0
    for batch in read_batches(shard, ["id", "text", "source", "meta"]):
        texts = texts_of(batch.column("text"))
        keys.append(_keys(batch, texts))
        records.append(_records(texts, row, rule))
        row += texts.num_texts
    found = np.concatenate(records)
    found = found[np.lexsort((found[:, 2], found[:, 1], found[:, 0]))]
    write_array(output, BUCKETS, [found], found.shape, _U64)
    parts = _parts(found)
    write_array(output, PARTS_FILE, [parts], parts.shape, _U64)
    write_array(output, KEYS, [np.concatenate(keys)], (row, 3), _U64)
    return {"documents": row, "records": len(found)}


def read_part(buckets: FileRef, parts: FileRef, first: int, last: int) -> np.ndarray:
    """Return the records of parts [first, last), uint64 [R, 3]; StoreError when they are not what was written."""
    table = open_array(parts).read(first, last + 1)
    begins = table[:, 0].astype(np.int64)
    size = int(begins[-1] - begins[0]) * RECORD_BYTES
    offset = buckets.size - _num_records(parts) * RECORD_BYTES + int(begins[0]) * RECORD_BYTES
    records = np.frombuffer(fs.read_range(buckets.url, offset, size), _U64)
    if len(records) * _U64.itemsize == size:
        records = records.reshape(-1, 3)
        if np.array_equal(_checksums(records, begins - begins[0]), table[:-1, 1]):
            return records
    raise StoreError(
        f"`{buckets.path}` does not hold what was written",
        where=buckets.url,
        hint="delete this file and run again: what made it runs anew",
    )


def _num_records(parts: FileRef) -> int:
    return int(open_array(parts).read(PARTS, PARTS + 1)[0, 0])


def _parts(records: np.ndarray) -> np.ndarray:
    borders = np.arange(PARTS, dtype=np.uint64) << np.uint64(64 - PARTS.bit_length() + 1)
    begins = np.append(np.searchsorted(records[:, 0], borders), len(records))
    return np.stack([begins.astype(_U64), np.append(_checksums(records, begins), _U64.type(0))], axis=1)


def _checksums(records: np.ndarray, begins: np.ndarray) -> np.ndarray:
    data = np.ascontiguousarray(records)
    sums = [xxhash.xxh3_64_intdigest(data[begin:end].tobytes()) for begin, end in pairwise(begins.tolist())]
    return np.array(sums, _U64)


def _keys(batch: pa.Table, texts: Texts) -> np.ndarray:
    names: list[Any] = batch.column("id").to_pylist()
    ids = b"".join(encoded_document_id(texts.text(at), name) for at, name in enumerate(names))
    places = zip(batch.column("source").to_pylist(), batch.column("meta").to_pylist(), strict=True)
    ties = [xxhash.xxh3_64_intdigest(f"{source}\0{meta}".encode()) for source, meta in places]
    halves = np.frombuffer(ids, ">u8").astype(_U64).reshape(-1, 2)
    return np.concatenate([halves, np.array(ties, _U64).reshape(-1, 1)], axis=1)


def _records(texts: Texts, first_row: int, rule: DuplicateRule) -> np.ndarray:
    """Return uint64 [R, 3]: hash, check, row."""
    rows = np.arange(first_row, first_row + texts.num_texts, dtype=_U64)
    if not isinstance(rule, MinHash):
        digests = b"".join(xxhash.xxh3_128_digest(texts.text(at)) for at in range(texts.num_texts))
        halves = np.frombuffer(digests, ">u8").astype(_U64).reshape(-1, 2)
        return np.concatenate([halves, rows.reshape(-1, 1)], axis=1)
    signed = sign_texts(texts, rule)
    bands = bands_of(signed.values[signed.any], rule)
    return np.stack([bands.hashes.ravel(), bands.checks.ravel(), np.repeat(rows[signed.any], rule.bands)], axis=1)
