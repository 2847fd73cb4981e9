"""Documents and their tokens (or bytes) by source, in a record that stays small.

A source's group is the first component of its path: `wiki/000.jsonl` counts under `wiki`, a file beside no folder
under its own name. A record names at most `NAMED` groups, the largest by tokens or bytes; the rest is one sum beside
them. It is exact but for a shard whose files have more groups than that.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from marin.base.json import Json

NAMED = 1000
SOURCES = "sources"
OTHER = "other_sources"


def source_group(path: str) -> str:
    """Return the group that a source counts under."""
    return path.partition("/")[0]


def count_sources(sources: pa.Array, lengths: np.ndarray, unit: str = "tokens") -> dict[str, Json]:
    """Return `{"sources": {group: {documents, unit}}}` of documents, by their sources [N] and lengths [N]."""
    encoded = sources.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    documents = np.bincount(codes, minlength=len(names)).tolist()
    tokens = np.zeros(len(names), np.int64)
    np.add.at(tokens, codes, lengths)
    counts: dict[str, Any] = {}
    for name, number, length in zip(names, documents, tokens.tolist(), strict=True):
        group = counts.setdefault(source_group(name), {"documents": 0, unit: 0})
        group["documents"] += number
        group[unit] += length
    return bounded({SOURCES: counts}, unit)


def bounded(
    record: dict[str, Any], unit: str = "tokens"
) -> dict[str, Any]:  # Any: JSON with the counts of `count_sources`, summed or not
    """Return the record with at most `NAMED` groups, and `other_sources` for the rest where there is any."""
    ranked = sorted(record.get(SOURCES, {}).items(), key=lambda item: (-item[1][unit], item[0]))
    kept, rest = ranked[:NAMED], ranked[NAMED:]
    result = {**record, SOURCES: dict(sorted(kept))}
    if rest:
        result[OTHER] = _sum([record.get(OTHER, {}), *(counts for _, counts in rest)], ("documents", unit))
    return result


def _sum(counts: Sequence[Any], names: Sequence[str]) -> dict[str, int]:
    return {name: sum(each.get(name, 0) for each in counts) for name in names}
