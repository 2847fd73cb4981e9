"""Loss, perplexity and bits per byte of a model on documents.

Bits per byte counts the bytes of the original text, so that tokenizers compare. Each document follows one token, the
one that documents followed in training; the document's own tokens are scored, each once, and no end-of-text token is.
Sums are fp64 over fp32 losses, so that the batch size changes no score beyond rounding. Documents are scored in ranges
that depend on the documents alone, so that how many workers there are changes nothing at all.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.evaluate.checkpoint import LoadedCheckpoint, opened_checkpoint
from marin.evaluate.ranges import document_ranges, read_range
from marin.evaluate.windows import Window, windows
from marin.graph.files import FileRef, Output, Shard

_UNSCORED = -100
_RESAMPLES = 1000
_DRAWN_AT_ONCE = 1 << 22  # documents: 32 MB

DOCUMENTS = "documents.parquet"
RANGE_DOCUMENTS, RANGE_BYTES = 1024, 2**19
"""A range that is scored on its own ends with so many documents or so much text, whichever comes first."""
NUM_SOURCES = 256
"""Sources with scores of their own in the record, those with the most bytes; the table has every document."""


class ScoreSet(NamedTuple):
    """Named numbers and what explains them."""

    metrics: dict[str, float]
    details: dict[str, Json]


@dataclass(frozen=True)
class DocumentLosses:
    """Per document: summed negative log-likelihood in nats, tokens scored, bytes of the original text."""

    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]
    bytes: NDArray[np.int64]


def plan_documents(shards: Sequence[Shard]) -> list[Shard]:
    """Return the documents in ranges, each of which `score_shard` scores on its own."""
    return document_ranges(shards, num_documents=RANGE_DOCUMENTS, num_bytes=RANGE_BYTES)


def score_shard(
    shard: Shard,
    output: Output,
    *,
    stride: int | None,
    batch_tokens: int,
    weights: FileRef,
    config: FileRef,
    tokenizer: FileRef,
) -> Json:
    """Write what each document of a range costs; returns how it was scored."""
    checkpoint = opened_checkpoint(weights, config, tokenizer)
    stride = stride or max(1, checkpoint.context // 2)
    documents = read_range(shard)
    texts = [document.text for document in documents]
    losses = score_documents(checkpoint, texts, stride=stride, batch_tokens=batch_tokens)
    names = {name: pa.array([getattr(document, name) for document in documents]) for name in ("id", "source")}
    numbers = {name: pa.array(getattr(losses, name)) for name in ("nats", "tokens", "bytes")}
    with output.open(DOCUMENTS) as file:
        parquet.write_table(pa.table({**names, **numbers}), file, compression="zstd")
    start = checkpoint.start_ids[-1]
    name = "the end-of-text token" if start == checkpoint.eos_id else repr(checkpoint.tokenizer.id_to_token(start))
    return {
        "context": checkpoint.context,
        "stride": stride,
        "conditioning": f"each document follows {name}; no end-of-text token is scored",
    }


def collect(output: Output, shards: Sequence[Shard]) -> ScoreSet:
    """Return the scores of all ranges together, and write `documents.parquet`; DataError without any text.

    The table says what each document costs, so that two models are compared document by document.
    """
    if not shards:
        raise _no_text()
    table = pa.concat_tables([_read(shard) for shard in shards])
    losses = DocumentLosses(*(table.column(name).to_numpy() for name in ("nats", "tokens", "bytes")))
    scores = summarise(losses)
    sources = by_source(losses, table.column("source").to_pylist())
    with output.open(DOCUMENTS) as file:
        parquet.write_table(table, file, compression="zstd")
    how: Any = shards[0].value  # Any: what `score_shard` returned
    return ScoreSet(scores.metrics, {**scores.details, **how, **sources})


def _read(shard: Shard) -> pa.Table:
    with fs.open_file(shard.file(DOCUMENTS)) as file, parquet.ParquetFile(file, pre_buffer=False) as table:
        return table.read(use_threads=False)


def score_documents(
    checkpoint: LoadedCheckpoint,
    texts: Sequence[str],
    *,
    stride: int,
    batch_tokens: int,
) -> DocumentLosses:
    """Return the losses of each document, in the order given."""
    encoded = [checkpoint.encode(text) for text in texts]
    nats = np.zeros(len(texts))
    work = [
        (document, window)
        for document, ids in enumerate(encoded)
        for window in windows(len(ids), context=checkpoint.context, stride=stride)
    ]
    for batch in _batches(work, batch_tokens):
        losses_BT = _losses(checkpoint, encoded, batch)
        np.add.at(nats, [document for document, _ in batch], losses_BT.sum(axis=1, dtype=np.float64))
    return DocumentLosses(
        nats,
        np.array([len(ids) for ids in encoded], dtype=np.int64),
        np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts], dtype=np.int64),
    )


def _batches(work: list[tuple[int, Window]], batch_tokens: int) -> Iterator[list[tuple[int, Window]]]:
    """Cut the windows, the longest first, into batches of at most `batch_tokens` tokens with padding."""
    longest_first = sorted(work, key=lambda item: item[1].start - item[1].end)
    start = 0
    while start < len(longest_first):
        window = longest_first[start][1]
        count = max(1, batch_tokens // (window.end - window.start))
        yield longest_first[start : start + count]
        start += count


def _losses(
    checkpoint: LoadedCheckpoint, encoded: list[list[int]], batch: list[tuple[int, Window]]
) -> NDArray[np.float32]:
    """Return the loss of each scored position [B, T] in nats, 0 elsewhere; padding is to the right, unseen."""
    length = max(window.end - window.start for _, window in batch)
    tokens_BT = np.zeros((len(batch), length), dtype=np.int64)
    targets_BT = np.full((len(batch), length), _UNSCORED, dtype=np.int64)
    for row, (document, (start, end, first_scored)) in enumerate(batch):
        stream = [checkpoint.start_ids[-1], *encoded[document]] if start == 0 else encoded[document]
        offset = 0 if start == 0 else 1
        tokens_BT[row, : end - start] = stream[start - offset : end - offset]
        targets_BT[row, first_scored - start : end - start] = encoded[document][first_scored:end]
    losses: NDArray[np.float32] = (
        checkpoint.model.token_losses(
            torch.from_numpy(tokens_BT).to(checkpoint.device), torch.from_numpy(targets_BT).to(checkpoint.device)
        )
        .cpu()
        .numpy()
    )
    return losses


def summarise(losses: DocumentLosses) -> ScoreSet:
    """Return loss (nats a token), perplexity and bits per byte, with a 95 % interval over documents."""
    nats, tokens, size = losses.nats.sum(), int(losses.tokens.sum()), int(losses.bytes.sum())
    if not tokens:
        raise _no_text()
    check_finite(nats, where="Evaluate.checkpoint")
    metrics = {
        "loss": nats / tokens,
        "perplexity": math.exp(min(nats / tokens, 700.0)),
        "bits_per_byte": nats / math.log(2) / size,
        "documents": float(len(losses.nats)),
        "tokens": float(tokens),
        "bytes": float(size),
    }
    return ScoreSet(metrics, {"bits_per_byte_interval": list(interval(losses))})


def check_finite(nats: float, *, where: str) -> None:
    """Raise DataError if the summed loss of a model is not a number."""
    if not math.isfinite(nats):
        raise DataError(
            "the model gives losses that are not finite",
            where=where,
            hint="the run diverged: lower the learning rate, or score an earlier checkpoint",
        )


def _no_text() -> DataError:
    return DataError(
        "there is no text to score", where="Evaluate.documents", hint="check the split and the documents' counts"
    )


def by_source(losses: DocumentLosses, sources: Sequence[str]) -> dict[str, Json]:
    """Return bits per byte, loss and interval of each source, and how many sources there are.

    A source of one document has no interval. Those beyond the `NUM_SOURCES` largest are only counted.
    """
    members: dict[str, list[int]] = {}
    for place, source in enumerate(sources):
        members.setdefault(source, []).append(place)
    bytes_of = {source: int(losses.bytes[places].sum()) for source, places in members.items()}
    largest = sorted(members, key=lambda source: (-bytes_of[source], source))[:NUM_SOURCES]
    scores: dict[str, Json] = {}
    for source in sorted(largest):
        places = members[source]
        own = DocumentLosses(losses.nats[places], losses.tokens[places], losses.bytes[places])
        if own.tokens.sum():
            metrics, details = summarise(own)
            interval = details["bits_per_byte_interval"] if len(places) > 1 else None
            scores[source] = {**metrics, "bits_per_byte_interval": interval}
    return {"sources": len(members), "by_source": scores}


def interval(losses: DocumentLosses) -> tuple[float, float]:
    """Return the 2.5 and 97.5 percentiles of bits per byte when documents are drawn anew, seed 0."""
    generator = np.random.default_rng(0)
    count = len(losses.nats)
    shares = np.full(count, 1 / count)
    at_once = max(1, _DRAWN_AT_ONCE // count)
    bits: list[NDArray[np.float64]] = []
    for begin in range(0, _RESAMPLES, at_once):
        drawn = generator.multinomial(count, shares, size=min(at_once, _RESAMPLES - begin))
        bits.append(drawn @ losses.nats / math.log(2) / np.maximum(drawn @ losses.bytes, 1))
    low, high = np.percentile(np.concatenate(bits), [2.5, 97.5])
    return float(low), float(high)
