"""Scores beside documents: `annotations.parquet`, a row for each row of the documents shard, a float column a score.

Invariant: scores are functions of each text alone, so nothing here changes when a threshold or a neighbour does. A
shard's value names the documents shard that it belongs to, by digest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.documents import read_documents
from marin.data.fasttext_model import check_labels, score_fasttext
from marin.data.quality import score_c4, score_gopher, score_scripts
from marin.data.repetition import score_repetition
from marin.data.scorers import C4, FastText, Gopher, Repetition, Scorer, Scripts
from marin.graph.files import FileRef, Output, Shard

ANNOTATIONS = "annotations.parquet"

ROW_GROUP_ROWS = 2**20

Score = Callable[[str], Mapping[str, float]]


def models_of(scorers: Sequence[Scorer], inputs: Sequence[FileRef]) -> tuple[FileRef | None, ...]:
    """Return the pinned model file of each scorer, None for those without."""
    (model,) = inputs or (None,)  # `Annotate` takes one at most
    return tuple(model if isinstance(scorer, FastText) else None for scorer in scorers)


def annotate_shard(
    shard: Shard, output: Output, *, scorers: Sequence[Scorer], models: Sequence[FileRef | None]
) -> Json:
    """Write the scores of the shard's documents; returns how many, the columns, and which documents.

    DataError when a function returns something else than finite numbers under the same names for every text.
    """
    score = [_scoring(scorer, model) for scorer, model in zip(scorers, models, strict=True)]
    columns: dict[str, list[float]] = {name: [] for scorer in scorers for name in getattr(scorer, "columns", ())}
    rows = 0
    for document in read_documents(shard):
        found: dict[str, float] = {}
        for scorer, fn in zip(scorers, score, strict=True):
            _add(found, fn(document.text), scorer)
        if not rows:
            columns = {name: [] for name in found}
        if found.keys() != columns.keys():
            odd = ", ".join(sorted(found.keys() ^ columns.keys()))
            raise DataError(
                f"scores of document {document.id!r} are not those of the documents before it: {odd}",
                where=f"{document.source}, document {document.id}",
                hint="return the same names for every text, 0 where a score means nothing",
            )
        for name, value in found.items():
            columns[name].append(value)
        rows += 1
    table = pa.table({name: pa.array(values, pa.float64()) for name, values in columns.items()})
    with output.open(ANNOTATIONS) as file:
        parquet.write_table(
            table, file, compression="zstd", compression_level=3, write_statistics=False, row_group_size=ROW_GROUP_ROWS
        )
    return {"documents": shard.digest, "rows": rows, "columns": list(columns)}


def total(values: Sequence[Any]) -> dict[str, Any]:  # Any: JSON of the shards
    """Return the record of the annotations: how many documents, which columns."""
    filled = [value for value in values if value["rows"]] or list(values)
    first = filled[0]["columns"] if filled else []
    for value in filled:
        if value["columns"] != first:
            odd = ", ".join(sorted(set(value["columns"]) ^ set(first))) or "their order"
            raise DataError(
                f"the shards have other scores than the first of them: {odd}",
                hint="a function must return the same names, in the same order, for every text",
            )
    return {"documents": sum(value["rows"] for value in values), "columns": first}


def read_annotations(shard: Shard) -> pa.Table:
    """Return the scores of a shard, a row a document."""
    with (
        fs.open_file(shard.file(ANNOTATIONS)) as file,
        parquet.ParquetFile(file, pre_buffer=False) as table,
    ):
        return table.read(use_threads=False)


def _scoring(scorer: Scorer, model: FileRef | None) -> Score:
    match scorer:
        case Gopher():
            return partial(score_gopher, scorer=scorer)
        case Repetition():
            return partial(score_repetition, scorer=scorer)
        case C4():
            return partial(score_c4, scorer=scorer)
        case Scripts():
            return partial(score_scripts, scorer=scorer)
        case FastText():
            assert model is not None
            check_labels(scorer, model)
            return partial(score_fasttext, scorer=scorer, file=model)
        case _:
            return scorer


def _add(found: dict[str, float], scores: object, scorer: Scorer) -> None:
    name = getattr(scorer, "__qualname__", type(scorer).__name__)
    if not isinstance(scores, Mapping):
        raise DataError(
            f"{name} returned {type(scores).__name__}, not a dict of numbers",
            where=name,
            hint='return scores by name, such as {"digits": 0.1}',
        )
    for column, value in scores.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(
                f"{name} returned {value!r} for `{column}`", where=name, hint="return finite numbers, 0 where none fits"
            )
        if column in found:
            raise DataError(
                f"two scorers give a column `{column}`; the second is {name}", where=name, hint="rename one of them"
            )
        found[column] = float(value)
