"""Rendered conversations to ids, and which of them are targets.

A conversation is encoded between the control strings of its template, as `tokenizers` does it, so that control strings
of messages stay text. `fastokens` does this where it agrees with `tokenizers` on the probe and where letters of the
vocabulary stand for bytes, so that a token's place in the text follows from the lengths of those before it; elsewhere
`tokenizers` says the places. Invariant: ids and targets are the same by either path.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from marin import fs
from marin.data import encoder_memo
from marin.data.encode import Encoder, choose_encoder
from marin.data.token_text import token_bytes
from marin.data.tokenizer import load_tokenizer, num_ids, special_id
from marin.graph.files import FileRef

_SPACES = "".join(each for each in map(chr, range(0x3001)) if each.isspace() and not "\x1c" <= each <= "\x1f")
"""Unicode's White_Space, which `tokenizers` strips; Python's own adds the separators U+001C to U+001F."""


class Rendered(NamedTuple):
    """A conversation as text: `answers` are character ranges of it, `control` those of the template's own tokens."""

    text: str
    answers: list[tuple[int, int]]
    control: list[tuple[int, int, str]]
    was_cut: bool
    """Whether a message held a control string."""


class Encoding(NamedTuple):
    """Ids of a conversation, and whether each is a target: its first character lies in an answer; both [T]."""

    ids: np.ndarray
    is_target: np.ndarray


class Misplaced(Exception):
    """Tokens whose lengths are not those of the text."""


@dataclass(frozen=True)
class ChatTokenizer:
    """One tokenizer two ways: with control strings as tokens, and as text; and how to find them."""

    parsing: Tokenizer
    literal: Tokenizer
    special: dict[str, AddedToken]
    fast: Encoder | None
    num_bytes: np.ndarray
    """Bytes of text of each id, int64 [ids]."""
    pattern: re.Pattern[str]
    """Where the template's control strings stand, with the space that they swallow; matches nothing if none."""

    def encode(self, rendered: Rendered) -> Encoding:
        """Return the encoding of a conversation by `tokenizers`."""
        if not rendered.was_cut:
            encoding = self.parsing.encode(rendered.text, add_special_tokens=False)
            ids, starts = encoding.ids, [begin for begin, _ in encoding.offsets]
        else:
            ids, starts = self._encode_pieces(rendered)
        return Encoding(np.array(ids, np.int64), _inside(np.array(starts, np.int64), rendered.answers))

    def encode_fast(self, batch: Sequence[Rendered]) -> list[Encoding]:
        """Return the encodings of conversations by `fastokens`; raises Misplaced where lengths do not add up."""
        assert self.fast is not None
        segments = [segment for rendered in batch for segment in _segments(rendered)]
        ids, offsets = self.fast.encode(segments)
        sizes, bounds = self.num_bytes[ids], offsets.astype(np.int64)
        begun = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])[bounds]
        if np.diff(begun).tolist() != [_num_bytes(segment) for segment in segments]:
            raise Misplaced
        found, at, borders = [], 0, bounds.tolist()
        for rendered in batch:
            parts, lengths = [ids[borders[at] : borders[at + 1]]], [sizes[borders[at] : borders[at + 1]]]
            for begin, end, word in rendered.control:
                at += 1
                parts += [np.array([self._control_id(word)], ids.dtype), ids[borders[at] : borders[at + 1]]]
                lengths += [np.array([_num_bytes(rendered.text[begin:end])]), sizes[borders[at] : borders[at + 1]]]
            at += 1
            places = np.concatenate(lengths)
            is_target = _inside(np.cumsum(places) - places, _in_bytes(rendered))
            found.append(Encoding(np.concatenate(parts).astype(np.int64), is_target))
        return found

    def _encode_pieces(self, rendered: Rendered) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        starts: list[int] = []
        at = 0
        for segment, (begin, end, word) in zip(
            _segments(rendered), [*rendered.control, (len(rendered.text), len(rendered.text), "")], strict=True
        ):
            encoding = self.literal.encode(segment, add_special_tokens=False)
            ids += encoding.ids
            starts += [at + start for start, _ in encoding.offsets]
            if word:
                ids.append(self._control_id(word))
                starts.append(begin)
            at = end
        return ids, starts

    def _control_id(self, word: str) -> int:
        return special_id(self.parsing, word if word in self.special else word.strip(_SPACES))


@lru_cache(maxsize=2)
def chat_tokenizer(file: FileRef) -> ChatTokenizer:
    """Return the tokenizer of a `tokenizer.json`, remembered in this process."""
    # Without the post-processor, which trims offsets: a newline before an answer would seem to begin in it.
    original = fs.read_file(file)
    record = json.loads(original)
    record["post_processor"] = None
    data = json.dumps(record).encode()
    parsing, literal = load_tokenizer(data), load_tokenizer(data)
    parsing.encode_special_tokens, literal.encode_special_tokens = False, True
    special = {token.content: token for token in parsing.get_added_tokens_decoder().values() if token.special}
    # A token that must stand alone as a word, or is sought in normalised text, is not where the pattern finds it.
    is_plain = record.get("normalizer") is None and not any(token.single_word for token in special.values())
    choice = choose_encoder(original, memo=encoder_memo.memo_folder()) if is_plain else None
    num_bytes = np.zeros(num_ids(parsing), np.int64)
    for number, text in token_bytes(parsing).items():
        num_bytes[number] = len(text)
    is_byte_level = "ByteLevel" in str(parsing.decoder)
    fast = choice.fast if choice is not None and is_byte_level else None
    return ChatTokenizer(parsing, literal, special, fast, num_bytes, _pattern(special))


def _pattern(special: dict[str, AddedToken]) -> re.Pattern[str]:
    words, spaces = sorted(special, key=len, reverse=True), f"[{_SPACES}]*"
    each = (
        (spaces if special[word].lstrip else "") + f"(?:{re.escape(word)})" + (spaces if special[word].rstrip else "")
        for word in words
    )
    return re.compile("|".join(each) or r"(?!)")


def _segments(rendered: Rendered) -> list[str]:
    """Return the text between control strings, one more than there are of these."""
    begins = [0, *(end for _, end, _ in rendered.control)]
    ends = [*(begin for begin, _, _ in rendered.control), len(rendered.text)]
    return [rendered.text[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _inside(places: np.ndarray, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return whether each place lies in a range, bool [T]."""
    found = np.zeros(len(places), np.bool_)
    for begin, end in ranges:
        found |= (places >= begin) & (places < end)
    return found


def _in_bytes(rendered: Rendered) -> list[tuple[int, int]]:
    """Return the answers as ranges of UTF-8 bytes."""
    if rendered.text.isascii():
        return rendered.answers
    return [(len(rendered.text[:begin].encode()), len(rendered.text[:end].encode())) for begin, end in rendered.answers]


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
