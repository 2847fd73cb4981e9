"""MosaicML Streaming's MDS files: a sample a document, read at random by its number.

The format (streaming/base/format/mds, version 2), little-endian: uint32 number of samples N; uint32 offset in the file
of each and of the end [N+1]; JSON that names the columns, their encodings, and their sizes where fixed; the samples. A
sample is the uint32 size of each column without a fixed one, then the columns by name. An `ndarray` is its type code
where the encoding names none; where it names no shape, a byte (axes * 4 + log2 of the bytes a dimension) and the
dimensions; and its values. Invariant: what is written are the bytes that the library writes for the same columns with
`size_limit=None`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from marin.base.errors import DataError
from marin.base.json import Json

COLUMN = "tokens"
IDS_COLUMNS = (COLUMN, "input_ids")
PREFIX_BYTES = 8
"""Bytes of a file that tell how long its head is."""
LARGEST_FILE = 2**32 - 1
_TYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
_NAMES = {np.dtype(name).name: np.dtype(name) for name in _TYPES.values()}


class MdsHead(NamedTuple):
    """Where N samples lie, `offsets` int64 [N+1], and the columns of each; None: a column without a fixed size."""

    offsets: np.ndarray
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


def _config(dtype: np.dtype) -> dict[str, Json]:
    return {
        "column_encodings": [f"ndarray:{dtype.name}"],
        "column_names": [COLUMN],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": None,
        "version": 2,
    }


def encode_head(lengths: np.ndarray, dtype: np.dtype) -> bytes:
    """Return what precedes the samples of documents of `lengths` ids, int64 [N], each 1 or more.

    DataError (`too_large`) for a file beyond what its offsets count.
    """
    config = json.dumps(_config(dtype), sort_keys=True).encode()
    shape_bytes = np.where(lengths < 2**8, 1, np.where(lengths < 2**16, 2, 4))
    sizes = 4 + 1 + shape_bytes + lengths * dtype.itemsize
    start = 4 + 4 * (len(lengths) + 1) + len(config)
    offsets = np.concatenate([[0], np.cumsum(sizes)]) + start
    if int(offsets[-1]) > LARGEST_FILE:
        raise DataError(
            f"a shard makes a file of {int(offsets[-1])} bytes, the format ends at {LARGEST_FILE} (too_large)",
            hint="make smaller shards, or export as Parquet or for Megatron",
        )
    return np.uint32(len(lengths)).tobytes() + offsets.astype("<u4").tobytes() + config


def encode_samples(documents: Sequence[np.ndarray]) -> bytes:
    """Return the samples of documents' ids, one after another; the types of all are that of the head."""
    parts = []
    for ids in documents:
        power = 0 if len(ids) < 2**8 else 1 if len(ids) < 2**16 else 2
        values = bytes([1 << 2 | power]) + len(ids).to_bytes(2**power, "little") + ids.tobytes()
        parts += [len(values).to_bytes(4, "little"), values]
    return b"".join(parts)


def encode_index(files: Sequence[tuple[str, int, int]], dtype: np.dtype) -> bytes:
    """Return `index.json` of a dataset: path, bytes and samples of each of its files, in order."""
    shards = [
        {
            **_config(dtype),
            "raw_data": {"basename": path, "bytes": size, "hashes": {}},
            "samples": samples,
            "zip_data": None,
        }
        for path, size, samples in files
    ]
    return json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()


def head_bytes(prefix: bytes) -> int:
    """Return how many bytes the head of a file has that begins with `prefix`; fewer than 8 make 0."""
    return int.from_bytes(prefix[4:8], "little") if len(prefix) == PREFIX_BYTES else 0


def decode_head(data: bytes, *, file_bytes: int, where: str) -> MdsHead:
    """Return what the head of a file of that size says; DataError names what does not fit, or has no ids."""

    def damaged(what: str) -> DataError:
        return DataError(f"{what} (damaged_mds)", where=where, hint="give MDS files as they were written, uncompressed")

    number = int.from_bytes(data[:4], "little")
    begin = 4 + 4 * (number + 1)
    if len(data) <= begin or len(data) != head_bytes(data[:PREFIX_BYTES]):
        raise damaged("not an MDS file")
    offsets = np.frombuffer(data, "<u4", number + 1, 4).astype(np.int64)
    if (np.diff(offsets) < 0).any() or int(offsets[-1]) != file_bytes:
        raise damaged(f"the file has {file_bytes} bytes, its head says {int(offsets[-1])}")
    try:
        config = json.loads(data[begin:])
        columns = [tuple(config[f"column_{name}"]) for name in ("names", "encodings", "sizes")]
        head = MdsHead(offsets, *columns)
    except (ValueError, LookupError, TypeError) as error:
        raise damaged(f"its columns cannot be read: {error}") from error
    if config.get("version") != 2 or len({len(column) for column in columns}) != 1:
        raise damaged(f"version {config.get('version')} with columns {list(head.names)}; known is version 2")
    _column_of_ids(head, where)
    return head


def _column_of_ids(head: MdsHead, where: str) -> tuple[int, np.dtype | None, bool]:
    """Return the number of the column of ids, their type, None where each has its own, and whether shapes are fixed."""
    found = next((head.names.index(name) for name in IDS_COLUMNS if name in head.names), None)
    if found is None:
        raise DataError(
            f"there is no column `tokens` or `input_ids`; there is {', '.join(map(str, head.names))}",
            where=where,
            hint="write the ids under one of these names",
        )
    kind, *options = str(head.encodings[found]).split(":")
    if kind == "bytes":
        return found, np.dtype("<i8"), True
    if kind != "ndarray" or (options and options[0] not in _NAMES) or len(options) > 2 or "," in "".join(options):
        raise DataError(
            f"column `{head.names[found]}` is {head.encodings[found]}, not ids (not_ids)",
            where=where,
            hint="write an ndarray of whole numbers, or the bytes of int64",
        )
    return found, _NAMES[options[0]] if options else None, len(options) == 2


def decode_samples(head: MdsHead, data: bytes, first: int, *, where: str) -> Iterator[np.ndarray]:
    """Yield the ids of the samples in `data`, which begins with sample `first`; DataError for one that does not fit."""
    column, dtype, fixed = _column_of_ids(head, where)
    base, at = int(head.offsets[first]), first
    while at + 1 < len(head.offsets) and int(head.offsets[at + 1]) - base <= len(data):
        sample = memoryview(data)[int(head.offsets[at]) - base : int(head.offsets[at + 1]) - base]
        try:
            yield _ids_in(_value(head, sample, column), dtype, fixed)
        except (ValueError, LookupError) as error:
            raise DataError(
                f"sample {at} is not what the head says: {error} (damaged_mds)",
                where=where,
                hint="give MDS files as they were written",
            ) from error
        at += 1


def _value(head: MdsHead, sample: memoryview, column: int) -> memoryview:
    variable = [number for number, size in enumerate(head.sizes) if not size]
    sizes: list[Any] = list(head.sizes)
    for place, number in enumerate(variable):
        sizes[number] = int.from_bytes(sample[4 * place : 4 * place + 4], "little")
    if 4 * len(variable) + sum(sizes) != len(sample):
        raise ValueError(f"columns of {sum(sizes)} bytes in a sample of {len(sample)}")
    begin = 4 * len(variable) + sum(sizes[:column])
    return sample[begin : begin + sizes[column]]


def _ids_in(value: memoryview, dtype: np.dtype | None, fixed: bool) -> np.ndarray:
    if dtype is None:
        dtype, value = np.dtype(_TYPES[value[0]]), value[1:]
    if fixed:
        return np.frombuffer(value, dtype)
    axes, width = value[0] >> 2, 1 << (value[0] & 3)
    shape = np.frombuffer(value[1 : 1 + axes * width], f"<u{width}")
    if axes != 1:
        raise ValueError(f"{axes} axes instead of one")
    ids = np.frombuffer(value[1 + width :], dtype)
    if len(ids) != int(shape[0]):
        raise ValueError(f"{len(ids)} ids where the shape says {int(shape[0])}")
    return ids
