"""Megatron-LM's indexed datasets: ids in `.bin`, one after another, and where they end in `.idx`.

The format (megatron/core/datasets/indexed_dataset.py): `MMIDIDX` and two zeros; little-endian version (8 bytes, 1),
type code (1), number of sequences (8), length of the document index (8); int32 length of each sequence, int64 byte
offset of each, and int64 number of the first sequence of each document, with one more at the end. Invariant: what is
written is read back, and what Megatron wrote is written byte for byte, a sequence a document.
"""

import struct
from typing import NamedTuple

import numpy as np

from marin.base.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
LARGEST_LENGTH = 2**31 - 1


class MegatronIndex(NamedTuple):
    """`dtype` of the ids in `.bin`, and the `lengths` of its D documents, int64 [D]; `joined` had several sequences."""

    dtype: np.dtype
    lengths: np.ndarray
    joined: int = 0


def encode_index(index: MegatronIndex) -> bytes:
    """Return an `.idx` file; DataError (`too_long`) for a document beyond what int32 counts."""
    codes = {np.dtype(name): code for code, name in CODES.items()}
    if len(index.lengths) and int(index.lengths.max()) > LARGEST_LENGTH:
        raise DataError(
            f"a document of {int(index.lengths.max())} tokens has no place in the format (too_long)",
            hint="cut such documents, or export as Parquet",
        )
    number = len(index.lengths)
    offsets = (np.cumsum(index.lengths) - index.lengths) * index.dtype.itemsize
    return b"".join(
        [
            HEADER.pack(MAGIC, 1, codes[index.dtype], number, number + 1),
            index.lengths.astype("<i4").tobytes(),
            offsets.astype("<i8").tobytes(),
            np.arange(number + 1, dtype="<i8").tobytes(),
        ]
    )


def decode_index(data: bytes, *, bin_bytes: int, where: str) -> MegatronIndex:
    """Return what an `.idx` file says of a `.bin` of that size; DataError names what does not fit."""

    def damaged(what: str) -> DataError:
        return DataError(f"{what} (damaged_index)", where=where, hint="give both files as they were written")

    if len(data) < HEADER.size or data[:9] != MAGIC:
        raise damaged("not an index of Megatron")
    _, version, code, sequences, documents = HEADER.unpack_from(data)
    if version != 1 or code not in CODES:
        raise damaged(f"version {version} with type code {code}; known are version 1 and codes {sorted(CODES)}")
    needed = HEADER.size + 12 * sequences + 8 * documents
    if len(data) not in (needed, needed + sequences):  # with a mode a sequence, which is not taken
        raise damaged(f"{len(data)} bytes, the header says {needed}")
    dtype = np.dtype(CODES[code])
    at = HEADER.size
    lengths = np.frombuffer(data, "<i4", sequences, at).astype(np.int64)
    offsets = np.frombuffer(data, "<i8", sequences, at + 4 * sequences)
    firsts = np.frombuffer(data, "<i8", documents, at + 12 * sequences)
    starts = np.cumsum(np.concatenate([np.zeros(1, np.int64), lengths]))
    if (lengths < 0).any() or not np.array_equal(offsets, starts[:-1] * dtype.itemsize):
        raise damaged("its sequences do not lie one after another")
    if int(starts[-1]) * dtype.itemsize != bin_bytes:
        raise damaged(f"`.bin` has {bin_bytes} bytes, the index says {int(starts[-1]) * dtype.itemsize}")
    if not documents or firsts[0] != 0 or firsts[-1] != sequences or (np.diff(firsts) < 0).any():
        raise damaged("its documents do not cover its sequences")
    return MegatronIndex(dtype, np.diff(starts[firsts]), int((np.diff(firsts) > 1).sum()))
