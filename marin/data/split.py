"""Hold documents out by the hash of their text: stable when a corpus grows, and copies stay on one side.

A shard may list rows that are held out because one of their cluster is (`split_clusters`).
"""

from collections.abc import Iterator
from typing import Literal

from marin.base.json import Json
from marin.data.arrays import read_array
from marin.data.counts import Counts
from marin.data.documents import Document, read_documents, write_documents
from marin.data.hashes import text_hash
from marin.graph.files import Output, Shard

Side = Literal["train", "held_out"]

JOINED = "joined.npy"
"""uint64 [J]: rows of a shard that are held out whatever their own hash says."""


def split_shard(shard: Shard, output: Output, *, keep: Side, fraction: float, seed: int) -> Json:
    """Write the shard's documents of one side, in order; `fraction` (0 to 1) of all texts are held out.

    `notes.with_their_cluster` counts those that are held out for another one of their cluster.
    """
    result = Counts()
    joined: set[int] = set()
    for file in shard.files:
        if file.path == JOINED:
            joined.update(read_array(file).tolist())
    if joined:
        result.notes["with_their_cluster"] = len(joined)

    def kept() -> Iterator[Document]:
        for row, document in enumerate(read_documents(shard)):
            side = "held_out" if row in joined else side_of(document.text, fraction=fraction, seed=seed)
            if side == keep:
                result.keep(document.text)
                yield document
            else:
                result.drop(side)

    write_documents(output, kept())
    return result.record()


def side_of(text: str, *, fraction: float, seed: int) -> Side:
    """Return the side of a text; it depends on the text, the fraction and the seed alone."""
    return "held_out" if text_hash(text, seed) < fraction * 2**64 else "train"
