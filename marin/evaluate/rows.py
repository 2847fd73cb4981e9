"""Loss of a model on the rows of held-out Sequences: what training's own look at them gives, for any checkpoint.

Every target is scored once. Bits per byte leave out special tokens, as they stand for no text. Rows are scored in
ranges that depend on the data alone; sums are fp64 over fp32 losses, so that batches change a score by rounding only.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.artifact_tokenizer import check_tokenizer
from marin.data.hashes import bundle
from marin.data.loader import IGNORED, SequenceData
from marin.data.token_sizes import token_sizes
from marin.evaluate.checkpoint import LoadedCheckpoint, opened_checkpoint
from marin.evaluate.loss import DocumentLosses, ScoreSet, check_finite, interval
from marin.graph.artifact import Checkpoint, Sequences
from marin.graph.files import FileRef, Output, Shard

SEQUENCES = "sequences.parquet"
RANGE_TOKENS = 2**17
"""A range that is scored on its own has so many tokens, or one sequence."""


def plan_rows(sequences: Sequences, checkpoint: Checkpoint) -> list[Shard]:
    """Return the sequences in ranges, each of which `score_rows` scores on its own.

    DataError where the checkpoint's tokenizer gives other ids.
    """
    check_tokenizer(sequences, checkpoint, where="EvaluateSequences.sequences", of="the checkpoint's")
    shards, context = sequences.shards, sequences.meta["context"]
    number = len(SequenceData(shards, context))
    length = max(1, RANGE_TOKENS // context)
    files = [file for shard in shards for file in shard.files]
    described: list[Json] = [[len(shard.files), shard.name, shard.digest, shard.value] for shard in shards]
    return [
        bundle(files, {"first": first, "last": min(number, first + length), "context": context, "shards": described})
        for first in range(0, number, length)
    ]


def score_rows(
    shard: Shard,
    output: Output,
    *,
    documents: bool,
    batch_tokens: int,
    weights: FileRef,
    config: FileRef,
    tokenizer: FileRef,
) -> None:
    """Write what each sequence of a range costs; `documents`: none sees another."""
    checkpoint = opened_checkpoint(weights, config, tokenizer)
    value: Any = shard.value  # Any: what `plan_rows` wrote
    context = value["context"]
    _check_context(context, checkpoint)
    source = SequenceData(_shards(shard), context)
    sizes_V = torch.from_numpy(token_sizes(checkpoint.tokenizer, checkpoint.model.output_weight.shape[0]))
    numbers = np.arange(value["first"], value["last"])
    at_once = max(1, batch_tokens // context)
    parts = [
        _score(checkpoint, source, numbers[start : start + at_once], sizes_V, documents=documents)
        for start in range(0, len(numbers), at_once)
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with output.open(SEQUENCES) as file:
        parquet.write_table(pa.table({"sequence": numbers, **columns}), file, compression="zstd")


def collect_rows(output: Output, shards: Sequence[Shard], *, documents: bool) -> ScoreSet:
    """Return the scores of all ranges together, and write `sequences.parquet`; DataError without any target."""
    table = pa.concat_tables([_read(shard) for shard in shards])
    held = {name: table.column(name).to_numpy() for name in table.column_names}
    targets, size = int(held["targets"].sum()), int(held["bytes"].sum())
    nats = float(held["nats"].sum())
    if not targets:
        raise DataError(
            "no token of the sequences is a target", where="EvaluateSequences.sequences", hint="check the loss masks"
        )
    check_finite(nats, where="EvaluateSequences.checkpoint")
    with output.open(SEQUENCES) as file:
        parquet.write_table(table, file, compression="zstd")
    loss = nats / targets
    metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    details: dict[str, Json] = {"documents_see_each_other": not documents}
    if size:
        metrics["bits_per_byte"] = float(held["text_nats"].sum()) / math.log(2) / size
        losses = DocumentLosses(held["text_nats"], held["targets"], held["bytes"])
        details["bits_per_byte_interval"] = list(interval(losses))
    counts = {"sequences": float(len(table)), "tokens": float(targets), "bytes": float(size)}
    return ScoreSet({**metrics, **counts}, details)


def _score(
    checkpoint: LoadedCheckpoint, source: SequenceData, numbers: np.ndarray, sizes_V: torch.Tensor, *, documents: bool
) -> dict[str, np.ndarray]:
    """Return per sequence `[B]`: nats and number of all targets, nats and bytes of those that stand for text."""
    device = checkpoint.device
    if documents:
        batch = source.batch(numbers, segments=True)
        marks = [torch.from_numpy(array).to(device) for array in (batch.segments, batch.positions)]
    else:
        batch, marks = source.batch(numbers), []  # type: ignore[assignment]
    tokens_BT, targets_BT = torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
    losses_BT = checkpoint.model.token_losses(tokens_BT.to(device), targets_BT.to(device), *marks).cpu().double()
    counted_BT = targets_BT != IGNORED
    sizes_BT = sizes_V[targets_BT.where(counted_BT, 0)] * counted_BT
    sums = {
        "nats": losses_BT,
        "targets": counted_BT,
        "text_nats": losses_BT * (sizes_BT > 0),
        "bytes": sizes_BT,
    }
    return {name: part.sum(dim=1).numpy() for name, part in sums.items()}


def _check_context(context: int, checkpoint: LoadedCheckpoint) -> None:
    if context > checkpoint.context:
        raise DataError(
            f"the sequences have {context:,} tokens, the model sees {checkpoint.context:,} at once",
            where="EvaluateSequences.sequences",
            hint=f"shuffle or pack with context={checkpoint.context}",
        )


def _shards(shard: Shard) -> list[Shard]:
    """Return the shards of Sequences that `plan_rows` put together."""
    value: Any = shard.value  # Any: what `plan_rows` wrote
    found, begin = [], 0
    for number, name, digest, described in value["shards"]:
        found.append(Shard(name, digest, shard.files[begin : begin + number], described))
        begin += number
    return found


def _read(shard: Shard) -> pa.Table:
    with fs.open_file(shard.file(SEQUENCES)) as file, parquet.ParquetFile(file, pre_buffer=False) as table:
        return table.read(use_threads=False)
