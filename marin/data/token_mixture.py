"""Mixtures of token shards, for a shuffle over all documents of all sources: how often each source is taken.

A source of fewer tokens than its share is taken several times, one of more in part. Which documents are in a part is
decided by the hash of their ids, so a larger share only adds some. Each copy of a document has an id of its own, and so
another place in a shuffle. Invariant: a shard's result depends on its documents, the epochs and the seed alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data import counts
from marin.data.hashes import U64, mix64, seed_hash
from marin.data.phases import Exhausted
from marin.data.pieces import read_pieces
from marin.data.token_files import DocumentColumns, write_tokens
from marin.graph.artifact import Tokens
from marin.graph.files import Output, Shard


def check_sources(loaded: Mapping[str, Tokens]) -> None:
    """Raise DataError for an empty source, or one of another tokenizer."""
    first_name, first = next(iter(sorted(loaded.items())))
    for name, tokens in sorted(loaded.items()):
        where = f"MixTokens.sources[{name!r}]"
        if not tokens.shards or not tokens.meta["tokens"]:
            raise DataError(f"the source `{name}` is empty", where=where, hint="leave it out")
        if tokens.file("tokenizer.json").digest != first.file("tokenizer.json").digest:
            raise DataError(
                f"`{name}` has another tokenizer than `{first_name}`",
                where=where,
                hint="tokenize all sources with one tokenizer",
            )


def epochs(
    sizes: Mapping[str, int], weights: Mapping[str, float], *, tokens: int, exhausted: Exhausted
) -> dict[str, float]:
    """Return how often each source of so many tokens is taken, so that all give `tokens` in shares of `weights`.

    `exhausted`: whether a source may be taken more than once, or all are taken less so that none is, or DataError.
    """
    whole = math.fsum(weights.values())
    wanted = {name: weights[name] / whole * tokens / size for name, size in sorted(sizes.items())}
    most = max(wanted, key=lambda name: wanted[name])
    if exhausted == "stop" and wanted[most] > 1:
        return {name: epochs / wanted[most] for name, epochs in wanted.items()}
    if exhausted == "error" and wanted[most] > 1:
        raise DataError(
            f"the source `{most}` has {sizes[most]} tokens, and {round(wanted[most] * sizes[most])} are asked for",
            where=f"MixTokens.sources[{most!r}]",
            hint='give it less weight, ask for fewer tokens, or set exhausted="repeat"',
        )
    return wanted


def take_shard(shard: Shard, output: Output, *, epochs: float, seed: int) -> Json:
    """Write the shard's documents so often; returns how many documents and tokens that are."""
    pieces = read_pieces(shard)
    places = mix64(np.ascontiguousarray(pieces.ids).view(U64)[:, 0] ^ seed_hash(seed, "mixture"))
    part = epochs - math.floor(epochs)
    in_part = np.flatnonzero(places < np.uint64(int(part * 2**64)))
    turns = [np.arange(len(places))] * math.floor(epochs) + [in_part]
    ids = np.concatenate([_copy_ids(pieces.ids[turn], number) for number, turn in enumerate(turns)])
    taken = pieces.chosen(np.concatenate(turns))
    columns = DocumentColumns(taken.lengths, ids, taken.sources, taken.loss)
    num_tokens = write_tokens(output, taken.views(), taken.dtype, columns)
    return {"documents_out": len(taken.lengths), "tokens": num_tokens}


def _copy_ids(ids: np.ndarray, number: int) -> np.ndarray:
    """Return the ids of copy `number` of documents, uint8 [N, 16]; the first has the documents' own."""
    if number == 0:
        return ids
    halves = np.ascontiguousarray(ids).view(U64).copy()
    halves[:, 1] = mix64(halves[:, 1] ^ seed_hash(number, "copy"))
    copied: np.ndarray = halves.view(np.uint8)
    return copied


class Taken(NamedTuple):
    """What was taken of one source."""

    name: str
    epochs: float
    shards: Sequence[Shard]
    meta: Any  # Any: the JSON of its step


def total(sources: Sequence[Taken]) -> dict[str, Any]:
    """Return the record of the mixture; `bytes` counts a source's tokens by their mean."""
    drawn = {source.name: counts.add([_value(shard) for shard in source.shards]) for source in sources}
    whole = counts.add(drawn.values())
    sizes = [source.meta["bytes"] * drawn[source.name].get("tokens", 0) // source.meta["tokens"] for source in sources]
    return {
        **{name: sources[0].meta[name] for name in ("vocab_size", "dtype", "eos", "eos_id")},
        "documents_out": whole["documents_out"],
        "tokens": whole["tokens"],
        "bytes": sum(sizes),
        "sources": {
            source.name: {
                "documents": drawn[source.name]["documents_out"],
                "tokens": drawn[source.name]["tokens"],
                "epochs": round(drawn[source.name]["tokens"] / source.meta["tokens"], 6),
            }
            for source in sources
        },
    }


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
