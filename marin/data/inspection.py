"""What an artifact of Documents, Tokens or Sequences holds, in numbers and samples.

Invariant: a pure function of the artifact: shards are counted each for itself and added up. Of tokens and rows only the
indices are read, of documents everything. Duplicates are texts that are equal to the byte; above `COUNTED` documents
only texts with one hash in 2^k are compared, which takes clusters whole or not at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from marin import fs
from marin.base.json import Json, pretty
from marin.data import counts, inspection_report, look
from marin.data.arrays import open_array
from marin.data.hashes import U64
from marin.data.ingest import QUARANTINE
from marin.data.lengths import histogram, quantiles
from marin.data.look_rows import read_pieces_of
from marin.data.source_counts import OTHER, SOURCES, bounded, count_sources
from marin.data.text_columns import text_batches
from marin.data.token_files import INDEX, loss_mask, read_index, read_loss, write_array
from marin.graph.artifact import Artifact
from marin.graph.files import Output, Shard

HASHES = "hashes.npy"
COUNTED = 2**23
"""Texts whose hashes are compared, about, at most: 8 bytes each."""
BATCH_BYTES = 16_000_000

Record = dict[str, Any]  # Any: JSON


def hash_one_of(num_documents: int) -> int:
    """Return the power of two such that hashes that are multiples of it are few enough."""
    return 1 << max(0, (num_documents - 1) // COUNTED).bit_length()


def inspect_documents(shard: Shard, output: Output, *, one_of: int) -> Json:
    """Count a shard of Documents; writes the hashes of texts that are multiples of `one_of`, uint64."""
    lengths, hashes, sources = [np.empty(0, np.int64)], [], [pa.array([], pa.large_string())]
    for batch in text_batches(shard, BATCH_BYTES):
        lengths.append(np.diff(batch.offsets))
        sources.append(batch.sources)
        hashes += [number for text in batch.encoded() if (number := xxhash.xxh3_64_intdigest(text)) % one_of == 0]
    write_array(output, HASHES, [np.array(hashes, U64)], (len(hashes),), U64)
    sizes = np.concatenate(lengths)
    quarantined: dict[str, int] = {}
    for record in quarantine([shard]):
        quarantined[record["reason"]] = quarantined.get(record["reason"], 0) + 1
    return {
        "documents": len(sizes),
        "bytes": int(sizes.sum()),
        "lengths": histogram(sizes),
        "longest": int(sizes.max(initial=0)),
        "quarantined": quarantined,
        **count_sources(pa.concat_arrays(sources), sizes, "bytes"),
    }


def inspect_tokens(shard: Shard, output: Output) -> Json:
    """Count a shard of Tokens, by its index."""
    index = read_index(shard.file(INDEX))
    lengths = np.diff(index["end"].to_numpy().astype(np.int64), prepend=0)
    loss = read_loss(index)
    targets = {} if loss is None else {"target_tokens": sum(int(loss_mask(runs).sum()) for runs in loss)}
    names = pa.concat_arrays(
        [pa.array([], pa.large_string()), *(part.dictionary_decode() for part in index["source"].chunks)]
    )
    return {"documents": len(lengths), **targets, **_counted(names, lengths)}


def inspect_sequences(shard: Shard, output: Output) -> Json:
    """Count one of `index_inputs`: `documents` are parts of documents, as long as their part of a row."""
    lengths, sources = read_pieces_of(shard.files)
    return {"documents": len(lengths), "rows": shard.value, **_counted(sources, lengths)}


def _counted(sources: pa.Array, lengths: np.ndarray) -> Record:
    return {
        "tokens": int(lengths.sum()),
        "lengths": histogram(lengths),
        "longest": int(lengths.max(initial=0)),
        **count_sources(sources, lengths),
    }


def summary(records: Iterable[Any], shards: Sequence[Shard], meta: Any, *, one_of: int) -> Record:  # Any: JSON
    """Return the numbers of all shards together, with what the artifact's own record says of documents that are gone.

    `records` are those of one of the functions above, `shards` what they wrote.
    """
    made = list(records)
    sums = counts.add(made)
    unit = "tokens" if "tokens" in sums else "bytes"
    sums = bounded({**sums, SOURCES: sums.get(SOURCES, {})}, unit)
    own = {
        name: meta[name]
        for name in ("documents_in", "dropped", "notes", "context", "num_sequences", "clusters")
        if name in meta
    }
    found: Record = {
        **{name: sums[name] for name in ("documents", "rows", "bytes", "tokens", "target_tokens") if name in sums},
        "unit": unit,
        "longest": max((record["longest"] for record in made), default=0),
        "quantiles": quantiles(sums.get("lengths", {})),
        "lengths": dict(sorted(sums.get("lengths", {}).items(), key=lambda item: int(item[0]))),
        SOURCES: sums[SOURCES],
        **({OTHER: sums[OTHER]} if OTHER in sums else {}),
        "quarantined": sums.get("quarantined", {}),
        "record": own,
    }
    if "num_target_tokens" in meta:
        found["target_tokens"] = meta["num_target_tokens"]
    if "num_sequences" in meta and SOURCES in meta:
        found["mixture"] = meta[SOURCES]
    if unit == "tokens" and "bytes" in meta:
        found["text_bytes"] = meta["bytes"]
    if unit == "bytes":
        found["duplicates"] = duplicates(shards, one_of=one_of)
    return found


def duplicates(shards: Sequence[Shard], *, one_of: int) -> Record:
    """Return how many documents another one equals, of so many texts whose hashes were compared."""
    arrays = [open_array(shard.file(HASHES)) for shard in shards]
    hashes = np.concatenate([np.empty(0, U64), *(array.read(0, array.shape[0]) for array in arrays)])
    sizes = np.unique(hashes, return_counts=True)[1]
    return {
        "compared": len(hashes),
        "one_of": one_of,
        "duplicates": int((sizes - 1).sum()),
        "clusters": int((sizes > 1).sum()),
        "largest_cluster": int(sizes.max(initial=0)),
    }


def headline(numbers: Record) -> Record:
    """Return the few numbers that a list of artifacts shows."""
    named = ("documents", "rows", "bytes", "tokens", "target_tokens", "duplicates")
    return {name: numbers[name] for name in named if name in numbers}


def write_report(output: Output, data: Artifact, numbers: Record, *, samples: int, length: int) -> None:
    """Write `inspection.json`, `report.md` and its picture."""
    record = {
        "schema": 1,
        "type": data.type_name(),
        **numbers,
        "quarantine": list(islice(quarantine(data.shards), samples)),
        "samples": look.samples(data, number=samples, length=length),
    }
    output.write("inspection.json", pretty(record).encode())
    output.write("report.md", inspection_report.markdown(record).encode())
    if numbers["lengths"]:
        output.write(inspection_report.PICTURE, inspection_report.picture(record).encode())


def quarantine(shards: Iterable[Shard]) -> Iterator[Record]:
    """Yield what was put into quarantine, in order."""
    for shard in shards:
        for file in shard.files:
            if file.path == QUARANTINE:
                yield from map(orjson.loads, fs.read_file(file).splitlines())
