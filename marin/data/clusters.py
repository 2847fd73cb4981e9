"""Clusters of duplicates, and the documents that are left: the passes after `signatures`.

Buckets are divided among tasks by hash (`pair_part`); documents that share one are joined, chains of such pairs are one
cluster (`cluster`); of each the lowest document stays (`keep_shard`). The order of documents: by 128-bit id
(`hashes.document_id`, of text and name), then by hash of source and meta, then, for documents that are equal in all,
by place. Invariant: which documents stay does not depend on how they are grouped into shards, on the order of shards
or on the number of tasks. A document's number is its shard's place by digest, times 2^32, plus its row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marin.base.json import Json
from marin.data.arrays import open_array
from marin.data.counts import Counts
from marin.data.documents import DOCUMENTS, Document, read_documents, write_documents
from marin.data.hashes import bundle, mix64
from marin.data.samples import SHOWN_CHARACTERS, Samples
from marin.data.signatures import BUCKETS, KEYS, PARTS, PARTS_FILE, RECORD_BYTES, read_part
from marin.data.token_files import write_array
from marin.graph.files import FileRef, Output, Shard

EDGES = "edges.npy"
REMOVED_ROWS = "removed.npy"
REMOVED = "removed.jsonl"

TASK_BYTES = 2**26
"""Records of buckets in one task, on average; it holds some four times that."""

SHOWN_MEMBERS = 4

_U64 = np.dtype("<u8")
ROW_BITS = 32


def places(documents: Sequence[Shard]) -> list[int]:
    """Return the documents shards' positions in order of digest."""
    return sorted(range(len(documents)), key=lambda at: documents[at].digest)


def plan_parts(signed: Sequence[Shard], task_bytes: int = TASK_BYTES) -> list[Shard]:
    """Return the inputs of `pair_part`; `signed` in order of the documents' digests."""
    total = sum(_value(shard)["records"] for shard in signed) * RECORD_BYTES
    num_tasks = min(PARTS, 1 << (max(0, total - 1) // task_bytes).bit_length())
    files = [shard.file(name) for shard in signed for name in (BUCKETS, PARTS_FILE)]
    step = PARTS // num_tasks
    return [bundle(files, [first, first + step]) for first in range(0, PARTS, step)]


def pair_part(shard: Shard, output: Output) -> Json:
    """Write `edges.npy` uint64 [E, 2]: each document that shares a bucket, beside the first one there."""
    first, last = _value(shard)
    parts, numbers = [np.empty((0, 3), _U64)], [np.empty(0, _U64)]
    for place in range(len(shard.files) // 2):
        records = read_part(shard.files[2 * place], shard.files[2 * place + 1], first, last)
        parts.append(records)
        numbers.append(records[:, 2] + _U64.type(place << ROW_BITS))
    found, number = np.concatenate(parts), np.concatenate(numbers)
    order = np.lexsort((number, found[:, 1], found[:, 0]))
    found, number = found[order], number[order]
    same = np.zeros(len(found), bool)
    same[1:] = (found[1:, :2] == found[:-1, :2]).all(axis=1)
    heads = np.maximum.accumulate(np.where(same, 0, np.arange(len(found)))) if len(found) else np.empty(0, np.int64)
    edges = np.unique(np.stack([number[heads[same]], number[same]], axis=1), axis=0)
    write_array(output, EDGES, [edges], edges.shape, _U64)
    return {"edges": len(edges)}


def cluster_input(paired: Sequence[Shard], signed: Sequence[Shard]) -> Shard:
    """Return the input of `cluster`; `signed` in order of the documents' digests."""
    edges = [shard.file(EDGES) for shard in paired]
    return bundle([*edges, *(shard.file(KEYS) for shard in signed)], len(edges))


def cluster(shard: Shard, output: Output, *, shown: int) -> Json:
    """Write, for each documents shard with any, the rows to remove (`removed/PLACE.npy`: row, size of its cluster).

    Returns counts and up to `2 * shown` clusters: the largest, and some chosen by hash. Holds about 100 bytes for
    each edge and each document that has a duplicate.
    """
    num_edges = _value(shard)
    read = [open_array(file) for file in shard.files[:num_edges]]
    edges = np.concatenate([np.empty((0, 2), _U64), *(array.read(0, array.shape[0]) for array in read)])
    nodes, ends = np.unique(edges, return_inverse=True)
    ends = ends.reshape(-1, 2)
    labels = connected(ends[:, 0], ends[:, 1], len(nodes))
    keys = _keys_of(nodes, shard.files[num_edges:])
    order = np.lexsort((nodes, keys[:, 2], keys[:, 1], keys[:, 0], labels))
    nodes, keys, labels = nodes[order], keys[order], labels[order]
    heads = np.flatnonzero(np.append(True, labels[1:] != labels[:-1])) if len(labels) else np.empty(0, np.int64)
    sizes = np.diff(np.append(heads, len(labels)))
    _write_removed(nodes, heads, sizes, output)
    return {
        "clusters": len(heads),
        "duplicates": len(nodes) - len(heads),
        "largest": int(sizes.max(initial=0)),
        "shown": _shown(nodes, keys, heads, sizes, shown),
    }


def connected(left: np.ndarray, right: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return int64 [num_nodes]: the lowest node that is connected with each, by edges between `left` and `right`."""
    labels = np.arange(num_nodes)
    while True:
        before = labels
        roots = labels[left], labels[right]
        low = np.minimum(*roots)
        labels = labels.copy()
        for side in roots:
            np.minimum.at(labels, side, low)
        while not np.array_equal(shorter := labels[labels], labels):
            labels = shorter
        if np.array_equal(labels, before):
            return labels


def removal_inputs(documents: Sequence[Shard], clustered: Shard) -> list[Shard]:
    """Return the inputs of `keep_shard`, in the order of the documents; a shard that loses nothing stands alone."""
    inputs: dict[int, Shard] = {}
    by_path = {file.path: file for file in clustered.files}
    for place, at in enumerate(places(documents)):
        removed = by_path.get(_removed_path(place))
        # Under one name: another shard that joins must not rename what this one loses.
        files = [documents[at].file(DOCUMENTS), *([replace(removed, path=REMOVED_ROWS)] if removed else [])]
        inputs[at] = bundle(files)
    return [inputs[at] for at in range(len(documents))]


def keep_shard(shard: Shard, output: Output, *, samples: int) -> Json:
    """Write the documents that are not to be removed, in order, and a sample of the others; returns counts."""
    result, removed = Counts(), Samples(samples)
    rows = [file for file in shard.files if file.path == REMOVED_ROWS]
    listed = open_array(rows[0]).read(0, 2**ROW_BITS) if rows else np.empty((0, 2), _U64)
    sizes: dict[int, int] = dict(zip(*listed.T.tolist(), strict=True))

    def kept() -> Iterator[Document]:
        for row, document in enumerate(read_documents(shard)):
            if row in sizes:
                result.drop("duplicate")
                removed.offer("duplicate", document, cluster=sizes[row])
            else:
                result.keep(document.text)
                yield document

    write_documents(output, kept())
    removed.write(output, REMOVED)
    return result.record()


def shown_inputs(documents: Sequence[Shard], clustered: Shard) -> list[Shard]:
    """Return the inputs of `read_rows` for the documents that `cluster` chose to show."""
    rows: dict[int, set[int]] = {}
    for chosen in _value(clustered)["shown"]:
        for place, row in chosen["members"]:
            rows.setdefault(place, set()).add(row)
    order = places(documents)
    return [
        bundle([documents[order[place]].file(DOCUMENTS)], [place, sorted(found)])
        for place, found in sorted(rows.items())
    ]


def read_rows(shard: Shard) -> Json:
    """Return place, row, id, source and first characters of the documents in the given rows."""
    place, rows = _value(shard)
    wanted = set(rows)
    return [
        [place, row, {"id": document.id, "source": document.source, "text": document.text[:SHOWN_CHARACTERS]}]
        for row, document in enumerate(read_documents(shard))
        if row in wanted
    ]


def report(clustered: Shard, read: Any) -> list[Json]:  # Any: what `read_rows` returned
    """Return the clusters to show, the largest first: why, size, and members, of which the first one is kept."""
    texts = {(place, row): text for rows in read for place, row, text in rows}
    return [
        {**chosen, "members": [texts[place, row] for place, row in chosen["members"]]}
        for chosen in _value(clustered)["shown"]
    ]


def numbers(clustered: Shard) -> dict[str, Json]:
    """Return what the record of the artifact says of its clusters."""
    value = _value(clustered)
    return {"clusters": value["clusters"], "largest_cluster": value["largest"]}


def _keys_of(nodes: np.ndarray, files: Sequence[FileRef]) -> np.ndarray:
    place = (nodes >> _U64.type(ROW_BITS)).astype(np.int64)
    rows = (nodes & _U64.type(2**ROW_BITS - 1)).astype(np.int64)
    bounds = np.searchsorted(place, np.arange(len(files) + 1))
    found = [np.empty((0, 3), _U64)]
    for at, file in enumerate(files):
        if bounds[at] < bounds[at + 1]:
            found.append(open_array(file).take(rows[bounds[at] : bounds[at + 1]]))
    return np.concatenate(found)


def _write_removed(nodes: np.ndarray, heads: np.ndarray, sizes: np.ndarray, output: Output) -> None:
    member = np.ones(len(nodes), bool)
    member[heads] = False
    numbers, size = nodes[member], np.repeat(sizes, sizes)[member].astype(_U64)
    order = np.argsort(numbers)
    numbers, size = numbers[order], size[order]
    place = (numbers >> _U64.type(ROW_BITS)).astype(np.int64)
    table = np.stack([numbers & _U64.type(2**ROW_BITS - 1), size], axis=1)
    for at in np.unique(place).tolist():
        begin, end = np.searchsorted(place, [at, at + 1])
        write_array(output, _removed_path(at), [table[begin:end]], (int(end - begin), 2), _U64)


def _shown(nodes: np.ndarray, keys: np.ndarray, heads: np.ndarray, sizes: np.ndarray, limit: int) -> list[Json]:
    """Return the largest clusters and some chosen by hash, each with its first members as place and row."""
    first = keys[heads]
    largest = np.lexsort((first[:, 2], first[:, 1], first[:, 0], -sizes))[:limit]
    by_hash = np.lexsort((first[:, 2], first[:, 1], mix64(first[:, 0])))[:limit]
    chosen = [("largest", at) for at in largest.tolist()] + [("sample", at) for at in by_hash.tolist()]
    return [
        {
            "why": why,
            "size": int(sizes[at]),
            "members": [
                [number >> ROW_BITS, number & (2**ROW_BITS - 1)]
                for number in nodes[heads[at] : heads[at] + min(int(sizes[at]), SHOWN_MEMBERS)].tolist()
            ],
        }
        for why, at in chosen
    ]


def _removed_path(place: int) -> str:
    return f"removed/{place:08}.npy"


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
