"""Tasks in shards of items: what a map runs on each, and the scores of all together.

Invariant: a shard is a fixed range of rows, so how many workers there are changes no bit of the table. Every shard
puts canaries through its own items before it scores them, and a score is one of all items or none.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.hashes import bundle
from marin.evaluate.canaries import NUM_ITEMS, Asked, check_choices, check_continuations
from marin.evaluate.checkpoint import LoadedCheckpoint, opened_checkpoint
from marin.evaluate.choices import ItemRow, encode_items, score_items
from marin.evaluate.conversation import ChatPrompts
from marin.evaluate.items import Item, build_items, check_ids, read_rows
from marin.evaluate.loss import ScoreSet
from marin.evaluate.scorer import ModelPredictor
from marin.evaluate.summary import summarise_task
from marin.evaluate.task import Choices, ExactMatch, Form
from marin.evaluate.written import check_matches, write_answers
from marin.graph.files import FileRef, Output, Shard

SHARD_ITEMS = 512
ROWS, ITEMS = "rows.parquet", "items.parquet"

SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("id", pa.string()),
        ("prompt_digest", pa.string()),
        ("choices", pa.list_(pa.string())),
        ("gold", pa.int32()),
        ("log_likelihoods", pa.list_(pa.float64())),
        ("tokens", pa.list_(pa.int32())),
        ("bytes", pa.list_(pa.int32())),
        ("chosen", pa.int32()),
        ("completion", pa.string()),
        ("correct", pa.bool_()),
        ("acc", pa.float64()),
        ("acc_norm", pa.float64()),
        ("acc_per_token", pa.float64()),
        ("cut", pa.int32()),
    ]
)
"""The per-item table; `marin.evaluate.choices.ItemRow` says what each column is."""


class Scored(NamedTuple):
    """A task that was scored: its name, its form, the shards of its rows."""

    name: str
    form: Form
    shards: tuple[Shard, ...]


def plan_items(table: FileRef, form: Form) -> list[Shard]:
    """Return ranges of the table's rows as shards; DataError when it has none, or ids that are not unique."""
    rows = read_rows(table)
    if not rows:
        raise DataError("there is no item to score", where="Task.items", hint="give a table with rows")
    check_ids(form, rows)
    starts = range(0, len(rows), SHARD_ITEMS)
    return [bundle([table], [start, min(start + SHARD_ITEMS, len(rows))]) for start in starts]


def score_shard(
    shard: Shard,
    output: Output,
    *,
    form: Form,
    examples: FileRef | None,
    chat_template: str | None,
    batch_tokens: int,
    weights: FileRef,
    config: FileRef,
    tokenizer: FileRef,
) -> Json:
    """Write the per-item rows of a shard; returns what a text follows, and on how many items the canaries passed."""
    first, last = shard.value  # type: ignore[misc]  # what `plan_items` put there
    rows = read_rows(shard.files[0])
    shown = None if examples is None else read_rows(examples)
    checkpoint = opened_checkpoint(weights, config, tokenizer)
    chat = None if chat_template is None else ChatPrompts(chat_template, checkpoint)
    items = build_items(form, rows, shown, range(int(first), int(last)), chat)  # type: ignore[arg-type]
    scored = score(checkpoint, form, items, batch_tokens=batch_tokens, chat=chat is not None)
    with output.open(ROWS) as file:
        parquet.write_table(item_table(scored.rows), file, compression="zstd")
    return {
        "canary_items": scored.canary_items,
        "conditioning": checkpoint.conditioning if chat is None else "each text is all that the chat template writes",
        "context": checkpoint.context,
    }


class Answered(NamedTuple):
    """Rows of items, and how many of the items the canaries were put through."""

    rows: list[ItemRow]
    canary_items: int


def score(
    checkpoint: LoadedCheckpoint, form: Form, items: Sequence[Item], *, batch_tokens: int, chat: bool = False
) -> Answered:
    """Return the row of each item, once the canaries have passed; CanaryError or DataError otherwise.

    `chat`: a chat template wrote the prompts.
    """
    if isinstance(form.answer, ExactMatch):
        checked = check_matches(checkpoint, items[:NUM_ITEMS], form.answer)
        return Answered(write_answers(checkpoint, items, form.answer, batch_tokens=batch_tokens, chat=chat), checked)
    requests = encode_items(checkpoint, items, form.delimiter, chat=chat)
    check = check_choices if isinstance(form.answer, Choices) else check_continuations
    checked = check(Asked(items, requests, checkpoint.context))
    predictor = ModelPredictor(checkpoint.model)
    rows = score_items(predictor, items, requests, context=checkpoint.context, batch_tokens=batch_tokens)
    return Answered(rows, checked)


def collect(output: Output, tasks: Sequence[Scored], *, chat_template: str | None) -> ScoreSet:
    """Write the per-item table of all tasks, and return their scores as `TASK/SCORE`.

    `chat_template`: the name of the one that wrote the prompts.
    """
    metrics: dict[str, float] = {}
    details: dict[str, Json] = {}
    tables = []
    for task in tasks:
        table = pa.concat_tables([_read(shard) for shard in task.shards])
        tables.append(table.set_column(0, SCHEMA.field("task"), pa.array([task.name] * len(table), pa.string())))
        scores = summarise_task(task.form, table.to_pylist())
        metrics |= {f"{task.name}/{name}": value for name, value in scores.items()}
        said: list[Any] = [shard.value for shard in task.shards]  # Any: what `score_shard` returned
        details[task.name] = {
            "answer": type(task.form.answer).__name__,
            "shots": task.form.shots,
            "chat_template": chat_template,
            "conditioning": said[0]["conditioning"],
            "context": said[0]["context"],
            "canary_items": sum(each["canary_items"] for each in said),
        }
    with output.open(ITEMS) as file:
        parquet.write_table(pa.concat_tables(tables), file, compression="zstd")
    return ScoreSet(metrics, {"tasks": details})


def item_table(rows: Sequence[ItemRow]) -> pa.Table:
    columns: Mapping[str, list[Any]] = {name: [row.get(name) for row in rows] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def _read(shard: Shard) -> pa.Table:
    with fs.open_file(shard.file(ROWS)) as file, parquet.ParquetFile(file, pre_buffer=False) as opened:
        return opened.read(use_threads=False)
