"""Shards of Parquet files: small files in groups, the row groups of large ones in runs.

Invariant: as for files of lines (marin/data/splits.py), the plan is a function of each file's own bytes and of the size
wanted, so that a file that is added leaves the shards of all others alone.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from marin.base.errors import InputError
from marin.base.json import Json
from marin.data.counts import Counts
from marin.data.documents import Batch
from marin.data.hashes import bundle
from marin.data.ingest import MapShards, OnError, ingest_files, write_accepted
from marin.data.parquet_files import Columns, RowGroup, read_rows, row_groups
from marin.data.parse import MAX_DOCUMENT_BYTES, Problem
from marin.data.sources import read_stored
from marin.data.splits import is_large, plan_groups
from marin.data.survey import BLOCKS, Surveyed, survey
from marin.graph.files import FileRef, Output, Shard


def ingest_parquet(
    files: Sequence[FileRef], map_shards: MapShards, *, shard_bytes: int, **rules: object
) -> list[Shard]:
    """Return the shards of Documents of all files, in order of path; `rules` are those of `parquet_shard`.

    A file above twice `shard_bytes` is surveyed and cut between row groups; one whose row groups are larger than that
    gives a shard for each.
    """
    if not files:
        raise InputError("there are no files to read", hint="check the pattern and what it excludes")
    large = [file for file in files if is_large(file, shard_bytes=shard_bytes)]
    cut_ones = set(large)
    small = [file for file in files if file not in cut_ones]
    surveys = map_shards(survey_parquet_shard, [bundle([file]) for file in large]).shards
    planned = [
        (group.files[0].path, 0, group) for group in (plan_groups(small, target_bytes=shard_bytes) if small else [])
    ]
    for file, surveyed in zip(large, surveys, strict=True):
        value: Any = surveyed.value
        groups = [RowGroup(*group) for group in value["row_groups"]]
        for run in cut_runs(groups, shard_bytes=shard_bytes):
            piece = bundle([file, surveyed.file(BLOCKS)], {"start": run.start, "stop": run.stop})
            planned.append((file.path, run.start, piece))
    planned.sort(key=lambda each: each[:2])
    return list(map_shards(parquet_shard, [shard for _, _, shard in planned], **rules).shards)


def ingest_either(
    files: Sequence[FileRef],
    map_shards: MapShards,
    *,
    shard_bytes: int,
    text: str,
    meta: Sequence[str] | None,
    **rules: object,
) -> list[Shard]:
    """Return the shards of Documents of files that are all Parquet, or all JSON lines, by their names.

    Raises InputError when there are both, or `meta` is given for lines.
    """
    tables = [file for file in files if file.path.endswith(".parquet")]
    if files and len(tables) == len(files):
        return ingest_parquet(files, map_shards, shard_bytes=shard_bytes, text=text, meta=meta, **rules)
    if tables:
        other = next(file for file in files if not file.path.endswith(".parquet"))
        raise InputError(
            f"the files are not of one kind: `{tables[0].path}` is Parquet and `{other.path}` is not",
            hint="choose files by a pattern that ends in their suffix, such as **/*.parquet",
        )
    if meta is not None:
        hint = "leave `meta` out: of a line all other fields become the document's `meta`"
        raise InputError("`meta` chooses columns of Parquet, and the files are lines", hint=hint)
    return ingest_files(files, map_shards, shard_bytes=shard_bytes, text=text, **rules)


def cut_runs(groups: Sequence[RowGroup], *, shard_bytes: int) -> list[range]:
    """Return runs of row groups that hold at least `shard_bytes`, the last one what is left; one run of none."""
    runs, start, size = [], 0, 0
    for number, group in enumerate(groups):
        size += group.bytes
        if size >= shard_bytes:
            runs.append(range(start, number + 1))
            start, size = number + 1, 0
    if start < len(groups) or not groups:
        runs.append(range(start, len(groups)))
    return runs


def survey_parquet_shard(shard: Shard, output: Output) -> Json:
    """Write the digests of the blocks of the shard's one file; returns the rows and bytes of its row groups."""
    (file,) = shard.files
    blocks = output.write(BLOCKS, survey(file))
    with Surveyed(file, blocks) as source:
        groups: list[Json] = [list(group) for group in row_groups(source)]
    return {"bytes": file.size, "row_groups": groups}


def parquet_shard(
    shard: Shard,
    output: Output,
    *,
    text: str,
    on_error: OnError,
    id: str | None = None,
    meta: Sequence[str] | None = None,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
) -> Json:
    """Write the documents of the shard's files, or of its row groups of one file; returns counts that balance.

    A bad row, row group or file fails with DataError, or is skipped, or is put into `quarantine.jsonl` with path, row
    and reason. An unreadable or changed file raises InputError whatever the policy.
    """
    result = Counts()
    columns = Columns(text, id, meta, max_document_bytes)
    if shard.value is None:
        write_accepted(output, _whole_files(shard.files, columns), on_error, result)
        return {**result.record(), "files": len(shard.files)}
    value: Any = shard.value
    run = range(value["start"], value["stop"])
    file, blocks = shard.files
    with Surveyed(file, blocks) as source:
        write_accepted(output, read_rows(source, file.path, columns, run), on_error, result)
    return {**result.record(), "files": int(run.start == 0)}


def _whole_files(files: Sequence[FileRef], columns: Columns) -> Iterator[Batch | Problem]:
    for file in files:
        yield from read_rows(io.BytesIO(read_stored(file)), file.path, columns)
