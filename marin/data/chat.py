"""Conversations to token shards with loss masks: which tokens an assistant said.

A document's text is JSON, `{"messages": [...], "tools": [...]}`. It is rendered by the chat template, and each token
is a target or not: by the template's `{% generation %}` tags where it has them, else by rendering growing prefixes of
the conversation. A token is a target when its first character lies in an answer; what the template puts after an
answer (its end-of-turn token) belongs to it where prefixes say so. Control strings inside a message or a tool are text;
while the template runs a mark stands in each, so a template that looks for one in a message does not find it.

Invariant: a conversation is kept whole with a mask that is neither empty nor full, or refused by name:
`bad_conversation`, `template_refuses`, `not_prefix_stable`, `no_target`, `all_target`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from tokenizers import AddedToken, Tokenizer

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.chat_template import ChatTemplate, Marks, Message, TemplateError
from marin.data.counts import Counts
from marin.data.documents import Document, read_documents
from marin.data.hashes import document_id
from marin.data.source_counts import count_sources
from marin.data.token_files import DocumentColumns, loss_runs, token_dtype, write_tokens
from marin.data.tokenizer import load_tokenizer, num_ids, special_id
from marin.graph.files import FileRef, Output, Shard

OnRefused = Literal["fail", "drop"]

ASSISTANT = "assistant"
_PRIVATE_USE = range(0xF0000, 0xF0400)


class Refused(Exception):
    """A conversation that cannot be taken: a stable reason, and the detail."""

    def __init__(self, reason: str, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.hint = reason, detail, hint


class Rendered(NamedTuple):
    """A conversation as text: `answers` are character ranges of it, `control` those of the template's own tokens."""

    text: str
    answers: list[tuple[int, int]]
    control: list[tuple[int, int, str]]
    was_cut: bool
    """Whether a message held a control string."""


@dataclass(frozen=True)
class ChatTokenizer:
    """One tokenizer two ways: with control strings as tokens, and as text; and how to find them."""

    parsing: Tokenizer
    literal: Tokenizer
    special: dict[str, AddedToken]

    @property
    def pattern(self) -> re.Pattern[str]:
        """Where the template's control strings stand, with the space that they swallow; matches nothing if none."""
        words = sorted(self.special, key=len, reverse=True)
        each = (
            (r"\s*" if self.special[word].lstrip else "")
            + f"(?:{re.escape(word)})"
            + (r"\s*" if self.special[word].rstrip else "")
            for word in words
        )
        return re.compile("|".join(each) or r"(?!)")


def chat_shard(
    shard: Shard,
    output: Output,
    *,
    tokenizer: FileRef,
    template: str,
    tokens: Mapping[str, str],
    eos: str,
    date: str | None,
    on_refused: OnRefused,
) -> Json:
    """Write the shard's conversations as `tokens.npy` and an `index.arrow` with `loss`; returns counts that balance.

    `tokens` are the special tokens that the template may name (`bos_token`). A conversation that does not end with
    `eos` gets one, which is no target. DataError names the first that is refused, unless those are dropped.
    """
    chat = _chat_tokenizer(tokenizer)
    renderer = ChatTemplate(template, tokens, date=date)
    eos_id = special_id(chat.parsing, eos)
    dtype = token_dtype(num_ids(chat.parsing))
    result = Counts()
    parts, masks, rows, names, sources, targets = [], [], [], bytearray(), [], 0
    for row, document in enumerate(read_documents(shard)):
        try:
            rendered = render(renderer, document, list(chat.special), chat.pattern)
            ids, is_target = encode(chat, rendered)
        except Refused as error:
            if on_refused == "fail":
                raise _error(document, error) from error
            result.drop(error.reason)
            continue
        if ids[-1] != eos_id:
            ids, is_target = [*ids, eos_id], np.append(is_target, False)
        parts.append(np.array(ids, dtype))
        masks.append(loss_runs(is_target))
        rows.append(row)
        targets += int(is_target.sum())
        names += document_id(document.text, document.id)
        sources.append(document.source)
        result.keep(rendered.text)
        result.notes["control_strings"] += rendered.was_cut
    lengths = np.array([len(part) for part in parts], np.int64)
    ids_of = np.frombuffer(bytes(names), np.uint8).reshape(-1, 16)
    columns = DocumentColumns(lengths, ids_of, pa.array(sources, pa.large_string()), masks, np.array(rows, np.int64))
    num_tokens = write_tokens(output, parts, dtype, columns)
    counted = count_sources(columns.sources, lengths)
    return {**result.record(), **counted, "tokens": num_tokens, "target_tokens": targets}


def render(template: ChatTemplate, document: Document, special: Sequence[str], pattern: re.Pattern[str]) -> Rendered:
    """Return a document's conversation as text with its answers; raises Refused."""
    messages, tools = _conversation(document.text)
    marks = _marks(orjson.dumps([messages, tools]).decode() + template.source + "".join(special))
    cut, tools = _cut([messages, tools], special, marks.cut)
    try:
        if template.has_generation_tags:
            text, answers = _take_marks(template.render(cut, tools, marks), marks)
        else:
            text, answers = _by_prefixes(template, cut, tools, marks)
    except TemplateError as error:
        raise Refused("template_refuses", f"the template refuses it: {error}", "change it or the template") from error
    places = [match.span() for match in pattern.finditer(text)]
    if marks.cut not in text:
        return Rendered(text, answers, [(begin, end, text[begin:end]) for begin, end in places], False)
    removed = np.cumsum([0, *(each == marks.cut for each in text)])
    plain = text.replace(marks.cut, "")

    def moved(at: int) -> int:
        return at - int(removed[at])

    control = [(moved(begin), moved(end), text[begin:end]) for begin, end in places]
    return Rendered(plain, [(moved(begin), moved(end)) for begin, end in answers], control, True)


def encode(chat: ChatTokenizer, rendered: Rendered) -> tuple[list[int], np.ndarray]:
    """Return ids and whether each is a target, bool [T]; raises Refused for a mask that is empty or full."""
    if not rendered.was_cut:
        encoding = chat.parsing.encode(rendered.text, add_special_tokens=False)
        ids, starts = encoding.ids, [begin for begin, _ in encoding.offsets]
    else:
        ids, starts = _encode_pieces(chat, rendered)
    is_target = np.zeros(len(ids), np.bool_)
    places = np.array(starts, np.int64)
    for begin, end in rendered.answers:
        is_target |= (places >= begin) & (places < end)
    if not is_target.any():
        raise Refused("no_target", "no token of it is an answer", "give conversations in which an assistant speaks")
    if is_target.all():
        raise Refused("all_target", "every token of it is an answer", "mend the template: a prompt is never a target")
    return ids, is_target


def _encode_pieces(chat: ChatTokenizer, rendered: Rendered) -> tuple[list[int], list[int]]:
    """Encode between the template's own control strings, as `tokenizers` does, with those of messages as text."""
    ids, starts, at = [], [], 0
    for begin, end, word in [*rendered.control, (len(rendered.text), len(rendered.text), "")]:
        encoding = chat.literal.encode(rendered.text[at:begin], add_special_tokens=False)
        ids += encoding.ids
        starts += [at + start for start, _ in encoding.offsets]
        if word:
            ids.append(special_id(chat.parsing, word if word in chat.special else word.strip()))
            starts.append(begin)
        at = end
    return ids, starts


def _by_prefixes(
    template: ChatTemplate, messages: Sequence[Message], tools: Any, marks: Marks
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text, and as answers what each assistant's message adds to the prompt for it."""
    whole = template.render(messages, tools, marks)
    answers = []
    for number, message in enumerate(messages):
        if message.get("role") != ASSISTANT:
            continue
        answered = template.render(messages[: number + 1], tools, marks)
        if number:
            prompt = template.render(messages[:number], tools, marks, add_generation_prompt=True)
        else:
            prompt = _opening(template, answered, tools, marks)
        if not answered.startswith(prompt) or not whole.startswith(answered):
            raise Refused(
                "not_prefix_stable",
                f"the template writes what stands before message {number} in another way once it is answered",
                "put {% generation %} tags around the answer in the template",
            )
        answers.append((len(prompt), len(answered)))
    return whole, answers


def _opening(template: ChatTemplate, answered: str, tools: Any, marks: Marks) -> str:
    """Return what stands before an answer that nothing was asked for: up to the prompt that any question ends in."""
    question = [{"role": "user", "content": "?"}]
    asked = template.render(question, tools, marks)
    prompt = template.render(question, tools, marks, add_generation_prompt=True).removeprefix(asked)
    return answered[: answered.find(prompt) + len(prompt)] if prompt in answered else prompt


def _take_marks(text: str, marks: Marks) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without begin and end marks, and the ranges that stood between them."""
    parts, ranges, begun, at = [], [], 0, 0
    for part in re.split(f"([{marks.begin}{marks.end}])", text):
        if part == marks.begin:
            begun = at
        elif part == marks.end:
            ranges.append((begun, at))
        else:
            parts.append(part)
            at += len(part)
    return "".join(parts), ranges


def _conversation(text: str) -> tuple[list[Message], Any]:
    try:
        record = orjson.loads(text)
        messages = record["messages"]
        good = isinstance(messages, list) and messages and all(isinstance(each.get("role"), str) for each in messages)
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise Refused(
            "bad_conversation", "it is no JSON with `messages` that have roles", "use `Conversations` to read"
        )
    return messages, record.get("tools")


def _marks(text: str) -> Marks:
    """Return three private-use characters that the text does not hold."""
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in text)
    try:
        return Marks(next(free), next(free), next(free))
    except StopIteration:
        raise Refused("bad_conversation", "it uses up a thousand private-use characters", "drop it") from None


def _cut(value: Any, special: Sequence[str], cut: str) -> Any:  # Any: JSON
    """Return the value with a mark after the first character of each control string in its texts."""
    if isinstance(value, str):
        for word in special:
            if word in value:
                value = value.replace(word, word[0] + cut + word[1:])
        return value
    if isinstance(value, dict):
        return {_cut(name, special, cut): _cut(each, special, cut) for name, each in value.items()}
    return [_cut(each, special, cut) for each in value] if isinstance(value, list) else value


@lru_cache(maxsize=2)
def _chat_tokenizer(file: FileRef) -> ChatTokenizer:
    # Without the post-processor, which trims offsets: a newline before an answer would seem to begin in it.
    record = json.loads(fs.read_file(file))
    record["post_processor"] = None
    data = json.dumps(record).encode()
    parsing, literal = load_tokenizer(data), load_tokenizer(data)
    parsing.encode_special_tokens, literal.encode_special_tokens = False, True
    added = parsing.get_added_tokens_decoder().values()
    return ChatTokenizer(parsing, literal, {token.content: token for token in added if token.special})


def _error(document: Document, error: Refused) -> DataError:
    return DataError(
        f"conversation `{document.id}`: {error.detail} ({error.reason})",
        where=document.source,
        hint=f'{error.hint}; on_refused="drop" drops and counts such conversations',
    )
