"""Conversations to token shards with loss masks: which tokens an assistant said.

A document's text is JSON, `{"messages": [...], "tools": [...]}`. It is rendered by the chat template, and each token
is a target or not: by the template's `{% generation %}` tags where it has them, else by rendering growing prefixes of
the conversation. A token is a target when its first character lies in an answer; what the template puts after an
answer (its end-of-turn token) belongs to it where prefixes say so. Control strings inside a message or a tool are text,
also those that begin there and that the template completes: while it runs a mark stands in each, so a template that
looks for one in a message does not find it. One that begins in the template's own words is the template's (`<|`, role).

Invariant: a conversation is kept whole with a mask that is neither empty nor full, or refused by name:
`bad_conversation`, `template_refuses`, `not_prefix_stable`, `no_target`, `all_target`.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.chat_encode import ChatTokenizer, Encoding, Misplaced, Rendered, chat_tokenizer
from marin.data.chat_template import ChatTemplate, Marks, Message, TemplateError
from marin.data.counts import Counts
from marin.data.documents import Document, read_documents
from marin.data.hashes import document_id, text_hash
from marin.data.source_counts import count_sources
from marin.data.token_files import DocumentColumns, loss_runs, token_dtype, write_tokens
from marin.data.tokenize import CHECK_ONE_OF, EncoderMismatch
from marin.data.tokenizer import num_ids, special_id
from marin.graph.files import FileRef, Output, Shard

OnRefused = Literal["fail", "drop"]

ASSISTANT = "assistant"
BATCH_CHARACTERS = 4_000_000
_PRIVATE_USE = range(0xF0000, 0xF0400)

_log = logging.getLogger(__name__)


class Refused(Exception):
    """A conversation that cannot be taken: a stable reason, and the detail."""

    def __init__(self, reason: str, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.hint = reason, detail, hint


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
    chat = chat_tokenizer(tokenizer)
    renderer = ChatTemplate(template, tokens, date=date)
    if chat.fast is None:
        _log.warning("encoding %s slowly: fastokens does not take this tokenizer", shard.name)
        return _encode(shard, output, chat, renderer, eos, on_refused)
    try:
        return _encode(shard, output, chat, renderer, eos, on_refused)
    except EncoderMismatch as error:
        _log.warning("encoding %s again, with tokenizers: fastokens differs on conversation %s", shard.name, error)
        return _encode(shard, output, replace(chat, fast=None), renderer, eos, on_refused)


def _encode(
    shard: Shard, output: Output, chat: ChatTokenizer, renderer: ChatTemplate, eos: str, on_refused: OnRefused
) -> Json:
    eos_id, dtype = special_id(chat.parsing, eos), token_dtype(num_ids(chat.parsing))
    result = Counts()
    parts, masks, rows, names, sources, targets = [], [], [], bytearray(), [], 0
    for row, document, rendered in _encoded(shard, chat, renderer):
        if isinstance(rendered, Refused):
            if on_refused == "fail":
                raise _error(document, rendered) from rendered
            result.drop(rendered.reason)
            continue
        ids, is_target = rendered.encoding
        if ids[-1] != eos_id:
            ids, is_target = np.append(ids, eos_id), np.append(is_target, False)
        parts.append(ids.astype(dtype))
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


class _Taken(NamedTuple):
    """A conversation that can be taken."""

    text: str
    was_cut: bool
    encoding: Encoding


def _encoded(
    shard: Shard, chat: ChatTokenizer, renderer: ChatTemplate
) -> Iterator[tuple[int, Document, _Taken | Refused]]:
    """Yield row, document and what became of it; EncoderMismatch when the fast encoder is not to be believed."""
    for batch in _rendered(shard, chat, renderer):
        good = [rendered for _, _, rendered in batch if isinstance(rendered, Rendered)]
        encodings = map(chat.encode, good) if chat.fast is None else iter(_checked(chat, batch, good))
        for row, document, rendered in batch:
            yield row, document, rendered if isinstance(rendered, Refused) else _taken(rendered, next(encodings))


def _rendered(
    shard: Shard, chat: ChatTokenizer, renderer: ChatTemplate
) -> Iterator[list[tuple[int, Document, Rendered | Refused]]]:
    """Yield the shard's documents with their texts, in batches of about `BATCH_CHARACTERS`."""
    batch: list[tuple[int, Document, Rendered | Refused]] = []
    size = 0
    for row, document in enumerate(read_documents(shard)):
        try:
            rendered = render(renderer, document, list(chat.special), chat.pattern)
        except Refused as error:
            batch.append((row, document, error))
            continue
        batch.append((row, document, rendered))
        size += len(rendered.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch


def _checked(
    chat: ChatTokenizer, batch: Sequence[tuple[int, Document, Rendered | Refused]], good: Sequence[Rendered]
) -> list[Encoding]:
    """Return the encodings by the fast encoder; some, chosen by content, are compared with those of `tokenizers`."""
    documents = [document for _, document, rendered in batch if isinstance(rendered, Rendered)]
    try:
        encodings = chat.encode_fast(good)
    except Misplaced as error:
        raise EncoderMismatch("of this batch") from error
    for document, rendered, fast in zip(documents, good, encodings, strict=True):
        if text_hash(document.text) % CHECK_ONE_OF == 0:
            truth = chat.encode(rendered)
            if not np.array_equal(fast.ids, truth.ids) or not np.array_equal(fast.is_target, truth.is_target):
                raise EncoderMismatch(document.id)
    return encodings


def _taken(rendered: Rendered, encoding: Encoding) -> _Taken | Refused:
    if not encoding.is_target.any():
        return Refused("no_target", "no token of it is an answer", "give conversations in which an assistant speaks")
    if encoding.is_target.all():
        return Refused("all_target", "every token of it is an answer", "mend the template: a prompt is never a target")
    return _Taken(rendered.text, rendered.was_cut, encoding)


def render(template: ChatTemplate, document: Document, special: Sequence[str], pattern: re.Pattern[str]) -> Rendered:
    """Return a document's conversation as text with its answers; raises Refused."""
    messages, tools = _conversation(document.text)
    marks = _marks(orjson.dumps([messages, tools]).decode() + template.source + "".join(special))
    cut, tools = _cut([messages, tools], tuple(special), marks.cut)
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
    was_cut = [match.span() for match in pattern.finditer(plain)] != [(begin, end) for begin, end, _ in control]
    return Rendered(plain, [(moved(begin), moved(end)) for begin, end in answers], control, was_cut)


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


def _cut(value: Any, special: tuple[str, ...], cut: str) -> Any:  # Any: JSON
    """Return the value with a mark after the first character of each control string in its texts, begun ones too."""
    if isinstance(value, str):
        for word in special:
            if word in value and len(word) == 1:  # nothing can be put inside it
                raise Refused("control_character", f"it has {word!r}, a special token of one character", "drop it")
            if word in value:
                value = value.replace(word, word[0] + cut + word[1:])
        begun = _beginnings(special)
        tails = range(max(0, len(value) - max(map(len, begun), default=0)), len(value))
        for at in reversed([at for at in tails if value[at:] in begun]):
            value = value[: at + 1] + cut + value[at + 1 :]
        return value
    if isinstance(value, dict):
        return {_cut(name, special, cut): _cut(each, special, cut) for name, each in value.items()}
    return [_cut(each, special, cut) for each in value] if isinstance(value, list) else value


@lru_cache(maxsize=2)
def _beginnings(special: tuple[str, ...]) -> frozenset[str]:
    """Return how control strings begin that more than one text may make up.

    Letters and digits alone are left out: templates compare them with words of their own, such as roles.
    """
    begun = {word[:length] for word in special for length in range(1, len(word))}
    return frozenset(text for text in begun if not text.isalnum())


def _error(document: Document, error: Refused) -> DataError:
    return DataError(
        f"conversation `{document.id}`: {error.detail} ({error.reason})",
        where=document.source,
        hint=f'{error.hint}; on_refused="drop" drops and counts such conversations',
    )
