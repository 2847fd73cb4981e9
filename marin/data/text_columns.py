"""Documents as Arrow columns: texts by bytes, without a Python object a text.

Invariant: the batches of a shard are its documents in order; where they are cut depends on the texts' bytes alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from marin.data.documents import read_batches
from marin.data.hashes import encoded_document_id
from marin.graph.files import Shard


class TextBatch(NamedTuple):
    """N documents: their texts, names and sources, each a column of strings [N]."""

    texts: pa.Array
    names: pa.Array
    sources: pa.Array

    @property
    def offsets(self) -> np.ndarray:
        """Where each text begins in the column's bytes, and where the last ends, int64 [N + 1]."""
        return _offsets(self.texts)

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return int(self.offsets[-1] - self.offsets[0])

    def encoded(self) -> Iterator[memoryview]:
        """Yield the UTF-8 bytes of each text, without a copy."""
        data, bounds = memoryview(self.texts.buffers()[2] or b""), self.offsets.tolist()
        for row in range(len(self.texts)):
            yield data[bounds[row] : bounds[row + 1]]

    def ids(self) -> list[bytes]:
        """Return `hashes.document_id` of each."""
        return [
            encoded_document_id(text, name) for text, name in zip(self.encoded(), self.names.to_pylist(), strict=True)
        ]


def text_batches(shard: Shard, batch_bytes: int) -> Iterator[TextBatch]:
    """Yield the shard's documents in batches that end with the text that exceeds `batch_bytes`."""
    for table in read_batches(shard, ["text", "id", "source"]):
        texts, names, sources = (column.combine_chunks() for column in table.columns)
        offsets = _offsets(texts)
        start = 0
        while start < len(texts):
            stop = int(np.searchsorted(offsets, offsets[start] + batch_bytes, side="right"))
            stop = min(max(stop, start + 1), len(texts))
            yield TextBatch(*(column.slice(start, stop - start) for column in (texts, names, sources)))
            start = stop


def _offsets(texts: pa.Array) -> np.ndarray:
    return np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
