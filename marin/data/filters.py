"""Documents that meet conditions on their scores.

Invariant: a document is kept when every condition holds, and dropped under the first that does not, so counts balance.
Scores are read, never computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marin.base.errors import DataError, did_you_mean
from marin.base.json import Json
from marin.data.annotate import ANNOTATIONS, read_annotations
from marin.data.conditions import AtLeast, Condition
from marin.data.counts import Counts
from marin.data.documents import DOCUMENTS, Document, read_documents, write_documents
from marin.data.hashes import bundle
from marin.data.samples import Samples
from marin.graph.files import Output, Shard

REMOVED = "removed.jsonl"


def check_columns(keep: Sequence[Condition], columns: Sequence[str]) -> None:
    """Raise DataError when a condition names a score that there is not."""
    for condition in keep:
        if condition.column not in columns:
            raise DataError(
                f"the annotations have no column `{condition.column}`",
                where="Filter.keep",
                hint=did_you_mean(condition.column, columns) or f"they have {', '.join(columns)}",
            )


def pair_shards(documents: Sequence[Shard], annotations: Sequence[Sequence[Shard]]) -> list[Shard]:
    """Return, for each documents shard, a shard of its file and the files of its scores, one of each annotation.

    DataError when a shard has no scores: they are of other documents.
    """
    known: list[dict[str, Shard]] = [{_value(shard)["documents"]: shard for shard in shards} for shards in annotations]
    pairs = []
    for shard in documents:
        files = [shard.file(DOCUMENTS)]
        for number, scores in enumerate(known):
            if shard.digest not in scores:
                raise DataError(
                    f"annotations {number} have no scores for shard {shard.name} of the documents",
                    where="Filter.annotations",
                    hint="annotate the very step that is filtered",
                )
            files.append(scores[shard.digest].file(ANNOTATIONS))
        pairs.append(bundle(files))
    return pairs


def filter_shard(shard: Shard, output: Output, *, keep: Sequence[Condition], samples: int) -> Json:
    """Write the documents that meet all conditions, in order, and a sample of the others in `removed.jsonl`.

    Returns counts: `dropped` by the first condition that did not hold, in the notes `fails ...` by each of them.
    """
    result, removed = Counts(), Samples(samples)
    scores = _scores(shard)
    failing = {condition: ~_holds(condition, scores[condition.column]) for condition in keep} if scores else {}
    reasons = [condition.reason for condition in failing]
    fails = np.array(list(failing.values()))  # [conditions, documents]
    result.notes.update({f"fails {condition.reason}": int(failed.sum()) for condition, failed in failing.items()})

    def kept() -> Iterator[Document]:
        for row, document in enumerate(read_documents(shard)):
            if fails[:, row].any():
                first = int(fails[:, row].argmax())
                result.drop(reasons[first])
                removed.offer(reasons[first], document, value=float(scores[keep[first].column][row]))
            else:
                result.keep(document.text)
                yield document

    write_documents(output, kept())
    removed.write(output, REMOVED)
    return result.record()


def _scores(shard: Shard) -> Mapping[str, np.ndarray]:
    """Return float64 [documents] by column; nothing for a shard without documents, whose columns may be unknown."""
    tables = [read_annotations(Shard("", "", (file,))) for file in shard.files if file.path == ANNOTATIONS]
    if not any(table.num_rows for table in tables):
        return {}
    columns = {name: table[name].to_numpy() for table in tables for name in table.column_names}
    if len(columns) != sum(table.num_columns for table in tables):
        raise DataError(
            "two annotations have a column of the same name", where="Filter.annotations", hint="leave one of them out"
        )
    return columns


def _holds(condition: Condition, values: np.ndarray) -> np.ndarray:
    held: np.ndarray = values >= condition.value if isinstance(condition, AtLeast) else values <= condition.value
    return held


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
