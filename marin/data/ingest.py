"""External files to documents: the shards of a corpus, and one shard's files as one Parquet file.

Invariant: every document is kept, or dropped under a named reason, and a shard is a function of its own bytes alone.
Which bytes make a shard is planned in marin/data/splits.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO, Literal, Protocol

import orjson

from marin.base.errors import DataError, InputError
from marin.base.json import Json
from marin.data import counts
from marin.data.codecs import is_json_lines
from marin.data.counts import Counts
from marin.data.documents import Batch, open_documents
from marin.data.frames import is_framed, survey_frames_shard
from marin.data.hashes import bundle
from marin.data.lines import LineReader
from marin.data.parse import MAX_DOCUMENT_BYTES, Fields, Problem, damage, parse_lines, parse_whole
from marin.data.sources import MAX_RATIO, read_chunks
from marin.data.splits import Piece, check_pieces, is_large, is_stream, piece_shard, plan_groups, ranges, stream_pieces
from marin.data.streams import PieceLines
from marin.data.survey import survey_shard
from marin.graph.context import Mapped
from marin.graph.files import FileRef, Output, Shard

OnError = Literal["fail", "skip", "quarantine"]

QUARANTINE = "quarantine.jsonl"

QUARANTINED_BYTES = 4096
"""How much of a bad line is kept for a reader to look at."""

NO_ERRORS = ("empty", "null_text")
"""Reasons for dropping a document that are no fault of the input."""


class MapShards(Protocol):
    """`ctx.map`."""

    def __call__(self, fn: Any, shards: Sequence[Shard], /, **config: object) -> Mapped: ...


def ingest_files(
    files: Sequence[FileRef], map_shards: MapShards, *, shard_bytes: int, text: str | None, **rules: object
) -> list[Shard]:
    """Return the shards of Documents of all files, in order of path; `rules` are those of `ingest_shard`.

    Files of lines above twice `shard_bytes` are surveyed and cut into pieces. How many a compressed one has is only
    known at its end, so these are mapped in rounds.
    """
    if not files:
        raise InputError("there are no files to read", hint="check the pattern and what it excludes")
    if text is None and all(is_json_lines(file.path) for file in files):
        raise InputError(
            f"`{files[0].path}` holds a JSON object a line, and would be taken as one document",
            where="Files.text",
            hint='name the field that holds the text, such as text="text"',
        )
    large = [file for file in files if text is not None and is_large(file, shard_bytes=shard_bytes)]
    cut_ones = set(large)
    small = [file for file in files if file not in cut_ones]
    for file in large:
        check_pieces(file, shard_bytes=shard_bytes)
    surveys = _surveys(large, map_shards)
    planned: list[tuple[str, int, FileRef | None, Shard]] = [
        (group.files[0].path, 0, None, group)
        for group in (plan_groups(small, target_bytes=shard_bytes) if small else [])
    ]
    streams = {file: 0 for file in large if is_stream(file)}
    for file in large:
        if file not in streams:
            cut = ranges(file, shard_bytes=shard_bytes)
            planned += [(file.path, piece.start, None, piece_shard(file, surveys[file], piece)) for piece in cut]
    made: list[tuple[str, int, Shard]] = []
    while planned or streams:
        for file, begun in streams.items():
            cut = stream_pieces(file, begun, shard_bytes=shard_bytes)
            planned += [(file.path, piece.start, file, piece_shard(file, surveys[file], piece)) for piece in cut]
            streams[file] = begun + len(cut)
        planned.sort(key=lambda each: each[:2])
        mapped = map_shards(ingest_shard, [each[3] for each in planned], text=text, **rules)
        for (path, start, stream, _), shard in zip(planned, mapped.shards, strict=True):
            if stream is None or stream in streams:
                made.append((path, start, shard))
            if stream is not None and _is_last(shard):
                streams.pop(stream, None)
        planned = []
    return [shard for _, _, shard in sorted(made, key=lambda each: each[:2])]


def _surveys(files: Sequence[FileRef], map_shards: MapShards) -> dict[FileRef, tuple[FileRef, ...]]:
    framed = [file for file in files if is_framed(file)]
    others = [file for file in files if not is_framed(file)]
    found: dict[FileRef, tuple[FileRef, ...]] = {}
    for survey, surveyed in ((survey_shard, others), (survey_frames_shard, framed)):
        shards = map_shards(survey, [bundle([file]) for file in surveyed]).shards
        found |= {file: shard.files for file, shard in zip(surveyed, shards, strict=True)}
    return found


def _is_last(shard: Shard) -> bool:
    value: Any = shard.value
    return bool(value["at_end"])


def total(
    records: Iterable[Any], *, max_errors: int | None = None, max_error_fraction: float | None = None
) -> dict[str, Any]:  # Any: JSON of `ingest_shard`
    """Return the sums over all shards; DataError when more documents are bad than allowed, or none is left."""
    plain = [{name: value for name, value in record.items() if name != "at_end"} for record in records]
    sums = counts.add(plain)
    dropped = {reason: count for reason, count in sums.get("dropped", {}).items() if reason not in NO_ERRORS}
    errors, documents = sum(dropped.values()), sums.get("documents_in", 0)
    allowed = [float("inf") if max_errors is None else max_errors]
    if max_error_fraction is not None:
        allowed.append(max_error_fraction * documents)
    if errors > min(allowed):
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise DataError(
            f"{errors} of {documents} documents are bad ({reasons}), more than the {min(allowed):g} allowed",
            hint='look at them with on_error="quarantine", or raise `max_errors` or `max_error_fraction`',
        )
    return counts.total(plain)


def ingest_shard(
    shard: Shard,
    output: Output,
    *,
    text: str | None,
    on_error: OnError,
    id: str | None = None,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    max_ratio: float = MAX_RATIO,
) -> Json:
    """Write the documents of the shard's files, or of its piece of one file; returns counts that balance.

    `text` and `id` name fields of JSON lines, nested as `a.b`; text None takes each file as one document. A bad line
    or file fails with DataError, or is skipped, or is put into `quarantine.jsonl` with path, line, byte offset and
    reason. An unreadable or changed file raises InputError whatever the policy.
    """
    result = Counts()
    if shard.value is None:
        items = _whole_files(shard.files, text, id, max_document_bytes, max_ratio, result)
        write_accepted(output, items, on_error, result)
        return {**result.record(), "files": len(shard.files)}
    value: Any = shard.value
    assert text is not None
    piece = Piece(value["start"], value["stop"])
    file, blocks, *frames = shard.files
    lines = PieceLines(file, blocks, piece, max_document_bytes, max_ratio, frames[0] if frames else None)
    fields = Fields(text, id, max_document_bytes)
    write_accepted(output, _piece(lines, fields, result), on_error, result)
    return {**result.record(), "files": int(piece.start == 0), "at_end": lines.at_end}


def _whole_files(
    files: Sequence[FileRef], text: str | None, id: str | None, max_bytes: int, max_ratio: float, result: Counts
) -> Iterator[Batch | Problem]:
    for file in files:
        if text is None:
            yield from parse_whole(file, result.notes, max_bytes=max_bytes, max_ratio=max_ratio)
            continue
        reader = LineReader(read_chunks(file, max_ratio=max_ratio), max_line_bytes=max_bytes)
        yield from parse_lines(reader.until(None), file.path, Fields(text, id, max_bytes), result.notes)
        if reader.damage is not None:
            yield damage(file.path, reader.damage)


def _piece(lines: PieceLines, fields: Fields, result: Counts) -> Iterator[Batch | Problem]:
    for block in lines:
        if isinstance(block, Problem):
            yield block
        else:
            yield from parse_lines([block], lines.file.path, fields, result.notes)


def records_shard(shard: Shard, output: Output, *, texts: Sequence[str]) -> Json:
    """Write documents from texts in the configuration; `shard` only gives the place."""
    result = Counts()
    batch = Batch("records", [f"{row}" for row in range(len(texts))], list(texts), ["{}"] * len(texts))
    write_accepted(output, [batch], "fail", result)
    return result.record()


def write_accepted(output: Output, items: Iterable[Batch | Problem], on_error: OnError, result: Counts) -> None:
    """Write the documents of batches; what becomes of problems is the policy's, and all of it is counted."""
    with ExitStack() as stack:
        quarantine: BinaryIO | None = None
        writer = stack.enter_context(open_documents(output))
        for item in items:
            if not isinstance(item, Problem):
                writer.add(_kept(item, result))
                continue
            if on_error == "fail":
                raise _error(item)
            if on_error == "quarantine":
                quarantine = quarantine or stack.enter_context(output.open(QUARANTINE))
                quarantine.write(_quarantine_line(item))
            result.dropped[item.reason] += item.documents


def _kept(batch: Batch, result: Counts) -> Batch:
    """Count documents; those without any character are left out."""
    if not all(batch.texts):
        rows = [row for row, text in enumerate(batch.texts) if text]
        result.dropped["empty"] += len(batch.texts) - len(rows)
        columns = ([column[row] for row in rows] for column in (batch.ids, batch.texts, batch.metas))
        batch = Batch(batch.source, *columns)
    if batch.texts:
        result.documents_out += len(batch.texts)
        result.bytes += sum([len(text.encode()) for text in batch.texts])
        result.notes["with_crlf"] += sum(["\r" in text and "\r\n" in text for text in batch.texts])
        result.notes["with_nul"] += sum(["\0" in text for text in batch.texts])
    return batch


def _error(problem: Problem) -> DataError:
    at = f", {problem.unit} {problem.line}" if problem.line else ""
    offset = f", byte offset {problem.offset}" if problem.unit == "line" else ""
    skip = 'on_error="skip" drops and counts such documents'
    return DataError(
        f"`{problem.path}`{at}: {problem.detail} ({problem.reason})",
        where=f"{problem.path}{offset}",
        hint=f"{problem.hint} {skip}".strip(),
    )


def _quarantine_line(problem: Problem) -> bytes:
    place = {"line": problem.line, "offset": problem.offset} if problem.unit == "line" else {"row": problem.line}
    return orjson.dumps(
        {
            "path": problem.path,
            **place,
            **({"documents": problem.documents} if problem.documents != 1 else {}),
            "reason": problem.reason,
            "detail": problem.detail,
            "data": problem.data[:QUARANTINED_BYTES].decode("utf-8", "backslashreplace"),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
