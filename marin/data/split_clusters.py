"""The sides of clusters of duplicates: which documents are held out because one of their cluster is.

A cluster is held out when any text of it is, by its own hash (`split.side_of`); in other words by the lowest hash of
its texts. Documents that join only lower it, and clusters only grow and merge, since whether two documents share a
bucket depends on these two alone. Invariant: a document that is held out stays so, whatever is added; one that is not
is held out later only where a text that is, by its own hash, joins its cluster. No cluster lies on both sides. None of
this depends on how documents are grouped into shards or on the number of tasks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marin.base.json import Json
from marin.data.arrays import open_array
from marin.data.clusters import EDGES, ROW_BITS, connected, places
from marin.data.documents import DOCUMENTS, iter_texts
from marin.data.hashes import U64, bundle
from marin.data.split import JOINED, side_of
from marin.data.token_files import write_array
from marin.graph.files import Output, Shard

HELD = "held.npy"


def own_sides(shard: Shard, output: Output, *, fraction: float, seed: int) -> Json:
    """Write `held.npy` uint64 [H]: the rows of the shard whose texts are held out by their own hash."""
    texts = enumerate(iter_texts([shard]))
    rows = [row for row, text in texts if side_of(text, fraction=fraction, seed=seed) == "held_out"]
    write_array(output, HELD, [np.array(rows, U64)], (len(rows),), U64)
    return {"held_out": len(rows)}


def spread_input(paired: Sequence[Shard], owned: Sequence[Shard]) -> Shard:
    """Return the input of `spread`; `owned` in order of the documents' digests."""
    edges = [shard.file(EDGES) for shard in paired]
    return bundle([*edges, *(shard.file(HELD) for shard in owned)], len(edges))


def spread(shard: Shard, output: Output) -> Json:
    """Write, for each documents shard with any, `joined/PLACE.npy` uint64 [J]: rows that their cluster holds out.

    Those that are held out by themselves are not among them. Returns counts; of clusters, those of two or more
    documents. Holds about 100 bytes for each edge and 8 for each document that is held out by itself.
    """
    num_edges: Any = shard.value
    arrays = [open_array(file) for file in shard.files]
    read = [array.read(0, array.shape[0]) for array in arrays]
    edges = np.concatenate([np.empty((0, 2), U64), *read[:num_edges]])
    numbers = [rows + U64.type(place << ROW_BITS) for place, rows in enumerate(read[num_edges:])]
    held = np.concatenate([np.empty(0, U64), *numbers])
    nodes, ends = np.unique(edges, return_inverse=True)
    ends = ends.reshape(-1, 2)
    labels = connected(ends[:, 0], ends[:, 1], len(nodes))
    is_held = np.isin(nodes, held)
    joined = nodes[~is_held & np.isin(labels, labels[is_held])]
    place = (joined >> U64.type(ROW_BITS)).astype(np.int64)
    rows = joined & U64.type(2**ROW_BITS - 1)
    for at in np.unique(place).tolist():
        begin, end = np.searchsorted(place, [at, at + 1])
        write_array(output, _path(at), [rows[begin:end]], (int(end - begin),), U64)
    return {"clusters": len(np.unique(labels)), "held_out_clusters": len(np.unique(labels[is_held]))}


def split_inputs(documents: Sequence[Shard], spread_out: Shard) -> list[Shard]:
    """Return the inputs of `split_shard`, in the order of the documents."""
    inputs: dict[int, Shard] = {}
    by_path = {file.path: file for file in spread_out.files}
    for place, at in enumerate(places(documents)):
        joined = by_path.get(_path(place))
        # Under one name: another shard that joins must not rename what this one has.
        files = [documents[at].file(DOCUMENTS), *([replace(joined, path=JOINED)] if joined else [])]
        inputs[at] = bundle(files)
    return [inputs[at] for at in range(len(documents))]


def numbers(spread_out: Shard) -> dict[str, Json]:
    """Return what the record of the artifact says of clusters."""
    value: Any = spread_out.value
    return dict(value)


def _path(place: int) -> str:
    return f"joined/{place:08}.npy"
