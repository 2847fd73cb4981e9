"""Loss, perplexity and bits per byte of a model on documents.

Bits per byte counts the bytes of the original text, so that tokenizers compare. Each document follows the
end-of-text token, as in training; the document's own tokens are scored, each once, and no end-of-text token is.
Sums are fp64 over fp32 losses, so that the batch size changes no score beyond rounding.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.documents import iter_texts
from marin.evaluate.checkpoint import LoadedCheckpoint, load_checkpoint
from marin.evaluate.windows import Window, windows
from marin.graph.files import Contents, Shard

Progress = Callable[[float, float, str], None]

_UNSCORED = -100
_RESAMPLES = 1000


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


def evaluate_checkpoint(
    contents: Contents,
    shards: Sequence[Shard],
    *,
    stride: int | None,
    batch_tokens: int,
    progress: Progress,
) -> ScoreSet:
    """Return the scores of a checkpoint on documents; DataError when there is no text."""
    checkpoint = load_checkpoint(contents)
    stride = stride or max(1, checkpoint.context // 2)
    losses = score_documents(
        checkpoint, list(iter_texts(shards)), stride=stride, batch_tokens=batch_tokens, progress=progress
    )
    details: Mapping[str, Json] = {
        "context": checkpoint.context,
        "stride": stride,
        "conditioning": "each document follows the end-of-text token; no end-of-text token is scored",
    }
    scores = summarise(losses)
    return ScoreSet(scores.metrics, {**scores.details, **details})


def score_documents(
    checkpoint: LoadedCheckpoint,
    texts: Sequence[str],
    *,
    stride: int,
    batch_tokens: int,
    progress: Progress,
) -> DocumentLosses:
    """Return the losses of each document, in the order given."""
    encoded = [checkpoint.encode(text) for text in texts]
    nats = np.zeros(len(texts))
    work = [
        (document, window)
        for document, ids in enumerate(encoded)
        for window in windows(len(ids), context=checkpoint.context, stride=stride)
    ]
    done, total = 0, len(work)
    for batch in _batches(work, batch_tokens):
        losses_BT = _losses(checkpoint, encoded, batch)
        np.add.at(nats, [document for document, _ in batch], losses_BT.sum(axis=1, dtype=np.float64))
        done += len(batch)
        progress(done, total, "windows")
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
        stream = [checkpoint.eos_id, *encoded[document]] if start == 0 else encoded[document]
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
        raise DataError(
            "there is no text to score", where="Evaluate.documents", hint="check the split and the documents' counts"
        )
    if not math.isfinite(nats):
        raise DataError(
            "the model gives losses that are not finite",
            where="Evaluate.checkpoint",
            hint="the run diverged: lower the learning rate, or score an earlier checkpoint",
        )
    metrics = {
        "loss": nats / tokens,
        "perplexity": math.exp(min(nats / tokens, 700.0)),
        "bits_per_byte": nats / math.log(2) / size,
        "documents": float(len(losses.nats)),
        "tokens": float(tokens),
        "bytes": float(size),
    }
    return ScoreSet(metrics, {"bits_per_byte_interval": list(_interval(losses))})


def _interval(losses: DocumentLosses) -> tuple[float, float]:
    """Return the 2.5 and 97.5 percentiles of bits per byte when documents are drawn anew, seed 0."""
    generator = np.random.default_rng(0)
    count = len(losses.nats)
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    bits = drawn @ losses.nats / math.log(2) / np.maximum(drawn @ losses.bytes, 1)
    low, high = np.percentile(bits, [2.5, 97.5])
    return float(low), float(high)
