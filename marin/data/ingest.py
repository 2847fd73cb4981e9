"""External files to documents: which files make a shard, and one shard's files as one Parquet file.

Invariant: groups depend on each file's own path and size, never on its neighbours or on the number of workers, so
that a file that is added or changed redoes one group. Every document is kept, or dropped under a named reason.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import orjson

from marin.base.errors import DataError, InputError
from marin.base.json import Json
from marin.data import counts
from marin.data.counts import Counts
from marin.data.documents import Document, write_documents
from marin.data.hashes import bundle, text_hash
from marin.data.parse import Problem, parse_lines, parse_whole
from marin.graph.files import FileRef, Output, Shard

OnError = Literal["fail", "skip", "quarantine"]

QUARANTINE = "quarantine.jsonl"

QUARANTINED_BYTES = 4096
"""How much of a bad line is kept for a reader to look at."""

total = counts.total


def plan_groups(files: Sequence[FileRef], *, target_bytes: int) -> list[Shard]:
    """Return groups of files, in order of path, of `target_bytes` on average; a larger file ends its group.

    A group ends after a file when the hash of its path, as a fraction, is below size / target: no running sum, so
    that adding or removing a file touches the group that holds it and no other.
    """
    if not files:
        raise InputError("there are no files to read", hint="check the pattern and what it excludes")
    groups: list[list[FileRef]] = [[]]
    for file in sorted(files, key=lambda file: file.path):
        groups[-1].append(file)
        if text_hash(file.path) * target_bytes < file.size * 2**64:
            groups.append([])
    return [bundle(group) for group in groups if group]


def ingest_shard(shard: Shard, output: Output, *, text: str | None, on_error: OnError) -> Json:
    """Write the documents of the shard's files; returns counts that balance.

    `text` names the field of JSON lines, nested as `a.b`; None takes each file as one document. A bad line or file
    fails with DataError, or is skipped, or is put into `quarantine.jsonl` with path, line, byte offset and reason.
    An unreadable or changed file raises InputError whatever the policy.
    """
    result = Counts()
    quarantined: list[bytes] = []
    write_documents(output, _accepted(shard.files, text, on_error, result, quarantined))
    if quarantined:
        output.write(QUARANTINE, b"".join(quarantined))
    return {**result.record(), "files": len(shard.files)}


def records_shard(shard: Shard, output: Output, *, texts: Sequence[str]) -> Json:
    """Write documents from texts in the configuration; `shard` only gives the place."""
    result = Counts()
    documents = (Document(f"{row}", text, "records") for row, text in enumerate(texts))
    write_documents(output, (document for document in documents if _keep(document, result)))
    return result.record()


def _accepted(
    files: Sequence[FileRef], field: str | None, on_error: OnError, result: Counts, quarantined: list[bytes]
) -> Iterator[Document]:
    for file in files:
        parsed = parse_whole(file, result.notes) if field is None else parse_lines(file, field, result.notes)
        for item in parsed:
            if isinstance(item, Problem):
                if on_error == "fail":
                    raise _error(item)
                if on_error == "quarantine":
                    quarantined.append(_quarantine_line(item))
                result.drop(item.reason)
            elif _keep(item, result):
                yield item


def _keep(document: Document, result: Counts) -> bool:
    """Count a document; False for one without any character."""
    if not document.text:
        result.drop("empty")
        return False
    result.keep(document.text)
    result.notes["with_crlf"] += "\r\n" in document.text
    result.notes["with_nul"] += "\0" in document.text
    return True


def _error(problem: Problem) -> DataError:
    line = f", line {problem.line}" if problem.line else ""
    skip = 'on_error="skip" drops and counts such documents'
    return DataError(
        f"`{problem.path}`{line}: {problem.detail} ({problem.reason})",
        where=f"{problem.path}, byte offset {problem.offset}",
        hint=f"{problem.hint} {skip}".strip(),
    )


def _quarantine_line(problem: Problem) -> bytes:
    return orjson.dumps(
        {
            "path": problem.path,
            "line": problem.line,
            "offset": problem.offset,
            "reason": problem.reason,
            "detail": problem.detail,
            "data": problem.data[:QUARANTINED_BYTES].decode("utf-8", "backslashreplace"),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
