"""What general compressors need for the same bytes: a number to read a model's bits per byte against."""

import gzip
import lzma
from collections.abc import Iterable, Sequence

from marin.base.errors import DataError
from marin.data.documents import iter_texts
from marin.evaluate.loss import ScoreSet
from marin.graph.files import Shard


def compress_documents(shards: Sequence[Shard]) -> ScoreSet:
    """Return bits per byte of gzip -9 and xz, each document compressed alone; DataError when there is no text."""
    return compress_texts(iter_texts(shards))


def compress_texts(texts: Iterable[str]) -> ScoreSet:
    """Return bits per byte of both compressors over texts."""
    plain = zipped = xzipped = count = 0
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        plain += len(data)
        zipped += len(gzip.compress(data, compresslevel=9, mtime=0))
        xzipped += len(lzma.compress(data))
        count += 1
    if not plain:
        raise DataError(
            "there is no text to compress",
            where="CompressionBaseline.documents",
            hint="check the split and the documents' counts",
        )
    metrics = {
        "gzip_bits_per_byte": 8 * zipped / plain,
        "xz_bits_per_byte": 8 * xzipped / plain,
        "documents": float(count),
        "bytes": float(plain),
    }
    return ScoreSet(metrics, {"compression": "gzip level 9 and xz (LZMA2, preset 6), one document at a time"})
