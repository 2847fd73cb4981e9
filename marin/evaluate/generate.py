"""Generation in shards: prompts from the configuration or from documents, completed and put back in order.

Invariant: a shard is a fixed range of prompts, and a completion depends on its own prompt and id alone. Every prompt
has a row: a completion, or the reason why there is none.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.hashes import bundle
from marin.evaluate.checkpoint import opened_checkpoint
from marin.evaluate.complete import Prompt, Sampling, complete_prompts
from marin.evaluate.ranges import document_ranges, read_range
from marin.graph.files import FileRef, Output, Shard

SHARD_PROMPTS, SHARD_BYTES = 256, 2**22
ROWS = "rows.parquet"

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", pa.large_string()),
        ("completion", pa.large_string()),
        ("tokens", pa.int32()),
        ("ended", pa.bool_()),
        ("cut", pa.int32()),
        ("error", pa.string()),
    ]
)
"""The table of completions; `marin.evaluate.complete.Completion` says what each column is."""


class Generated(NamedTuple):
    """All rows, in order, and how many there are and failed."""

    table: pa.Table
    metrics: dict[str, float]


def plan_prompts(prompts: Sequence[str]) -> list[Shard]:
    """Return the prompts as shards; each is named by its place."""
    starts = range(0, len(prompts), SHARD_PROMPTS)
    return [bundle([], {"first": start, "prompts": list(prompts[start : start + SHARD_PROMPTS])}) for start in starts]


def plan_documents(shards: Sequence[Shard]) -> list[Shard]:
    """Return ranges of documents as shards; a document's text is a prompt, and its id names it."""
    return document_ranges(shards, num_documents=SHARD_PROMPTS, num_bytes=SHARD_BYTES)


def generate_shard(
    shard: Shard,
    output: Output,
    *,
    sampling: Sampling,
    batch_tokens: int,
    weights: FileRef,
    config: FileRef,
    tokenizer: FileRef,
) -> Json:
    """Write a row for each prompt of the shard, in order; returns how many there are and how many failed."""
    checkpoint = opened_checkpoint(weights, config, tokenizer)
    rows = complete_prompts(checkpoint, _prompts(shard), sampling, batch_tokens=batch_tokens)
    with output.open(ROWS) as file:
        parquet.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file, compression="zstd")
    return {"prompts": len(rows), "failed": sum(row["error"] is not None for row in rows)}


def _prompts(shard: Shard) -> list[Prompt]:
    if not isinstance(shard.value, dict):
        return [Prompt(each.id, each.text) for each in read_range(shard)]
    value: Any = shard.value  # Any: what `plan_prompts` put there
    return [Prompt(str(value["first"] + place), text) for place, text in enumerate(value["prompts"])]


def gather(shards: Sequence[Shard]) -> Generated:
    """Return the rows of all shards; DataError when there is no prompt, or none could be continued."""
    values: list[Any] = [shard.value for shard in shards]  # Any: what `generate_shard` returned
    prompts, failed = (sum(value[name] for value in values) for name in ("prompts", "failed"))
    if failed == prompts:
        raise DataError(
            f"none of {prompts} prompts could be continued",
            where="Generate",
            hint="if there are prompts, the run diverged: lower the learning rate, or take an earlier checkpoint",
        )
    tables = []
    for shard in shards:
        with fs.open_file(shard.file(ROWS)) as file, parquet.ParquetFile(file, pre_buffer=False) as opened:
            tables.append(opened.read(use_threads=False))
    return Generated(pa.concat_tables(tables), {"prompts": float(prompts), "failed": float(failed)})
