"""Two evaluations compared item by item, from the tables that they keep: `items.parquet` or `documents.parquet`.

Items are paired by task and name, documents by source and name. What only one of them has is counted and left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pyarrow import parquet

from marin.store import Manifest, Store
from marin.view.paired import Difference, Discordance, Measured, differences, discordance

ITEMS, DOCUMENTS = "items.parquet", "documents.parquet"
_MEASURES = ("acc", "acc_norm", "acc_per_token")
_COLUMNS = {
    ITEMS: [*_MEASURES, "task", "id", "prompt_digest", "completion", "gold", "log_likelihoods", "bytes", "correct"],
    DOCUMENTS: ["source", "id", "nats", "bytes"],
}

Row = Mapping[str, Any]  # Any: what a table holds
Pairs = Sequence[tuple[Row, Row]]


class Compared(NamedTuple):
    """One measure of one task (or of all documents) in two evaluations."""

    task: str
    measure: str
    items: int
    difference: Difference
    discordance: Discordance | None
    """Of measures that an item has right or wrong."""


class Comparison(NamedTuple):
    """All measures, and what could not be paired or was asked in other words."""

    compared: list[Compared]
    only_a: int
    only_b: int
    other_prompts: int
    """Pairs whose prompts differ, such as by the number of examples."""


def compare(store: Store, a: Manifest, b: Manifest) -> Comparison | None:
    """Return what two evaluations differ in item by item; None unless both keep the same kind of table."""
    for name, key in ((ITEMS, "task"), (DOCUMENTS, "source")):
        if all(any(file.path == name for file in each.files) for each in (a, b)):
            left, right = (_rows(store, each, name, key) for each in (a, b))
            pairs = [(left[which], right[which]) for which in left if which in right]
            measures = _items if name == ITEMS else _documents
            return Comparison(
                [each for task, found in _grouped(pairs, name).items() for each in measures(task, found)],
                only_a=len(left) - len(pairs),
                only_b=len(right) - len(pairs),
                other_prompts=sum(one.get("prompt_digest") != two.get("prompt_digest") for one, two in pairs),
            )
    return None


def _rows(store: Store, manifest: Manifest, name: str, key: str) -> dict[tuple[str, str], Row]:
    contents = store.contents(manifest)
    # No threads and no reading ahead, as in `marin.graph.artifact.Table`.
    with contents.reader.open(contents.file(name)) as file, parquet.ParquetFile(file, pre_buffer=False) as table:
        rows = table.read(columns=_COLUMNS[name], use_threads=False).to_pylist()
    return {(row[key], row["id"]): row for row in rows}


def _grouped(pairs: Pairs, name: str) -> dict[str, list[tuple[Row, Row]]]:
    groups: dict[str, list[tuple[Row, Row]]] = {}
    for pair in pairs:
        groups.setdefault(pair[0]["task"] if name == ITEMS else "all documents", []).append(pair)
    return groups


def _documents(task: str, pairs: Pairs) -> list[Compared]:
    return _compared(
        task, {"bits_per_byte": _measured(pairs, lambda row: row["nats"] / math.log(2), lambda row: row["bytes"])}, None
    )


def _items(task: str, pairs: Pairs) -> list[Compared]:
    first = pairs[0][0]
    measures = {}
    for name in _MEASURES:
        if all(row[name] is not None for pair in pairs for row in pair):
            shown = name if first["completion"] is None else "exact_match"
            measures[shown] = _measured(pairs, lambda row, name=name: row[name], lambda row: 1)  # type: ignore[misc]
    if all(row["log_likelihoods"] for pair in pairs for row in pair):
        measures["bits_per_byte"] = _measured(
            pairs,
            lambda row: -row["log_likelihoods"][row["gold"]] / math.log(2),
            lambda row: row["bytes"][row["gold"]],
        )
    correct = ([pair[side]["correct"] for pair in pairs] for side in (0, 1))
    return _compared(task, measures, discordance(*(np.array(each, dtype=bool) for each in correct)))


def _measured(pairs: Pairs, part: Callable[[Row], float], size: Callable[[Row], float]) -> tuple[Measured, Measured]:
    sides = ([pair[side] for pair in pairs] for side in (0, 1))
    one, two = (
        Measured(np.array([part(row) for row in rows], float), np.array([size(row) for row in rows], float))
        for rows in sides
    )
    return one, two


def _compared(
    task: str, measures: Mapping[str, tuple[Measured, Measured]], right: Discordance | None
) -> list[Compared]:
    found = differences(list(measures.values()))
    return [
        Compared(task, name, len(pair[0].parts), difference, right if name in {"acc", "exact_match"} else None)
        for (name, pair), difference in zip(measures.items(), found, strict=True)
    ]
