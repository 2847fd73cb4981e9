"""JSON lines with conversations to Documents, a conversation each: text is `{"messages": [...], "tools": [...]}`.

Taken are messages with `role` and `content`, and those with `from` and `value` (`human`, `gpt`), which are renamed.
What else a line has becomes `meta`, so that filters and deduplication work as on any documents. Named reasons for bad
lines: `invalid_json`, `missing_messages`, `bad_messages`, and those of a damaged archive.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import orjson

from marin.base.json import Json
from marin.data.counts import Counts
from marin.data.documents import Batch
from marin.data.ingest import write_accepted
from marin.data.lines import LineReader, LongLine
from marin.data.parse import BOM, MAX_DOCUMENT_BYTES, Problem, damage
from marin.data.sources import read_chunks
from marin.graph.files import FileRef, Output, Shard

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
_EXAMPLE = 'a line is {"messages": [{"role": "user", "content": "..."}, ...]}'


def conversations_shard(
    shard: Shard, output: Output, *, messages: str, on_error: Literal["fail", "skip", "quarantine"]
) -> Json:
    """Write the conversations of the shard's files; returns counts that balance.

    DataError for a bad line, unless those are skipped or kept aside.
    """
    result = Counts()
    write_accepted(output, _parsed(shard.files, messages, result), on_error, result)
    return {**result.record(), "files": len(shard.files)}


def _parsed(files: Sequence[FileRef], field: str, result: Counts) -> Iterator[Batch | Problem]:
    for file in files:
        reader = LineReader(read_chunks(file), max_line_bytes=MAX_DOCUMENT_BYTES)
        for block in reader.until(None):
            if isinstance(block, LongLine):
                yield Problem("too_long", "the line is too long", file.path, block.number, block.offset, b"")
                continue
            offset = block.offset
            for number, line in enumerate(block.data.removesuffix(b"\n").split(b"\n"), block.number):
                if line.strip():
                    yield _parse(line, file.path, number, offset, field)
                else:
                    result.notes["blank_lines"] += 1
                offset += len(line) + 1
        if reader.damage is not None:
            yield damage(file.path, reader.damage)


def _parse(line: bytes, path: str, number: int, offset: int, field: str) -> Batch | Problem:
    def problem(reason: str, detail: str) -> Problem:
        return Problem(reason, detail, path, number, offset, line, _EXAMPLE)

    try:
        record = orjson.loads(line.removeprefix(BOM) if number == 1 else line)
    except orjson.JSONDecodeError as error:
        return problem("invalid_json", str(error))
    if not isinstance(record, dict) or not isinstance(record.get(field), list) or not record[field]:
        has = ", ".join(f"`{name}`" for name in record) if isinstance(record, dict) else "no fields"
        return problem("missing_messages", f"no list `{field}`; the line has {has or 'no fields'}")
    messages = [_message(each) for each in record.pop(field)]
    if None in messages:
        return problem("bad_messages", f"message {messages.index(None)} has no `role` and `content`")
    conversation: dict[str, Any] = {"messages": messages}
    if isinstance(record.get("tools"), list):
        conversation["tools"] = record.pop("tools")
    meta = orjson.dumps(record, option=orjson.OPT_SORT_KEYS).decode()
    return Batch(path, [f"{path}:{number}"], [orjson.dumps(conversation).decode()], [meta])


def _message(message: Any) -> dict[str, Any] | None:  # Any: JSON
    if not isinstance(message, dict):
        return None
    if "role" not in message and isinstance(message.get("from"), str):
        role = _ROLES.get(message["from"], message["from"])
        rest = {name: value for name, value in message.items() if name not in ("from", "value")}
        message = {"role": role, "content": message.get("value"), **rest}
    has_said = message.get("content") is not None or "tool_calls" in message
    return message if isinstance(message.get("role"), str) and has_said else None
