"""Pairs of near duplicates for a person to look at, each with its similarity.

Of the clusters that `clusters.cluster` chose to show, the lowest document is paired with each other one that is shown.
The similarity is that of Jaccard of their shingles, from the `SKETCH` lowest hashes of both (Broder 1997, section 3.2):
to the point for documents of so many shingles or fewer, else within some 0.015 (one standard deviation). Invariant: as
pure as the clusters, whatever the shards.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from marin.base.json import Json
from marin.data import clusters
from marin.data.documents import read_documents
from marin.data.duplicate_rules import MinHash
from marin.data.hashes import mix64
from marin.data.ingest import MapShards
from marin.data.samples import SHOWN_CHARACTERS
from marin.data.signatures import sign_shard
from marin.data.words import shingles_of, texts_of, words_of
from marin.graph.files import Shard

SKETCH = 1024


def find(documents: Sequence[Shard], map_shards: MapShards, *, rule: MinHash, shown: int) -> dict[str, Json]:
    """Return `near_duplicates`, how many there are, and `near_pairs` of up to `2 * shown` clusters."""
    signing = map_shards(sign_shard, documents, rule=rule).shards
    signed = [signing[at] for at in clusters.places(documents)]
    paired = map_shards(clusters.pair_part, clusters.plan_parts(signed)).shards
    (clustered,) = map_shards(clusters.cluster, [clusters.cluster_input(paired, signed)], shown=shown).shards
    read = map_shards(read_members, clusters.shown_inputs(documents, clustered), rule=rule)
    value: Any = clustered.value
    counted = {"duplicates": value["duplicates"], "clusters": value["clusters"], "largest_cluster": value["largest"]}
    return {"near_duplicates": counted, "near_pairs": pairs(clustered, read)}


def read_members(shard: Shard, *, rule: MinHash) -> Json:
    """Return place, row, id, source, first characters and lowest hashes of the documents in the given rows."""
    value: Any = shard.value
    place, rows = value
    wanted = set(rows)
    return [
        [place, row, {"id": each.id, "source": each.source, "text": each.text[:SHOWN_CHARACTERS]}, _sketch(each, rule)]
        for row, each in enumerate(read_documents(shard))
        if row in wanted
    ]


def pairs(clustered: Shard, read: Iterable[Any]) -> list[dict[str, Json]]:  # Any: what `read_members` returned
    """Return each pair once, the least alike first: whether these are duplicates is the question of the threshold."""
    value: Any = clustered.value
    found = {(place, row): (shown, sketch) for rows in read for place, row, shown, sketch in rows}
    made: dict[tuple[Any, Any], dict[str, Json]] = {}
    for chosen in value["shown"]:
        first, *others = map(tuple, chosen["members"])
        for other in others:
            alike = _similarity(found[first][1], found[other][1])
            documents = [found[first][0], found[other][0]]
            made[first, other] = {"similarity": alike, "cluster": chosen["size"], "documents": documents}
    return sorted(made.values(), key=lambda pair: (pair["similarity"], str(pair["documents"])))


def _sketch(document: Any, rule: MinHash) -> list[int]:
    texts = texts_of(pa.chunked_array([pa.array([document.text], pa.large_string())]))
    hashes = shingles_of(words_of(texts, rule.unit), rule.ngram).hashes
    lowest: list[int] = np.unique(mix64(hashes))[:SKETCH].tolist()
    return lowest


def _similarity(one: list[int], other: list[int]) -> float:
    both = sorted({*one, *other})
    # Beyond the end of a full sketch nobody knows what the document has.
    known = both if max(len(one), len(other)) < SKETCH else both[:SKETCH]
    return round(len({*one} & {*other} & {*known}) / max(1, len(known)), 3)
