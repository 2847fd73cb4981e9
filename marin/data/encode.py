"""Texts to ids: the truth (`tokenizers`) and the fast path (`fastokens`), which must agree.

Invariant: the same ids by either path, so the encoder is placement and never part of a result. The fast path is
taken only after it agreed on `probe_texts`; whoever uses it re-checks a sample. Control strings inside a text are
text: only the caller puts special tokens in.
"""

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import fastokens
import numpy as np
from tokenizers import Tokenizer

from marin import fs
from marin.data import encoder_memo
from marin.data.tokenizer import load_tokenizer
from marin.graph.files import FileRef

_NO_BYTE = "\ue000"

MOST_HOLES = 2**16
"""Ids without a token that are filled for fastokens: it loads 100,000 of them in 3 s, 1,000,000 in minutes."""


class Encoded(NamedTuple):
    """Ids of several texts: `ids` uint32 [sum of lengths], text i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray
    offsets: np.ndarray

    def equals(self, other: "Encoded") -> bool:
        """Whether both have the same ids for the same texts."""
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.ids, other.ids)


class Encoder(Protocol):
    """Turns texts into ids, adding no special token."""

    def encode(self, texts: Sequence[str]) -> Encoded: ...


class TokenizersEncoder:
    """Hugging Face `tokenizers`: the truth; about 3 MB/s a core."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of the texts."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        parts = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        offsets = np.zeros(len(parts) + 1, dtype=np.uint64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return Encoded(np.concatenate([np.empty(0, np.uint32), *parts]), offsets)


class FastEncoder:
    """`fastokens`: flat buffers, some 60 times faster. The constructor raises ValueError for what it cannot take."""

    def __init__(self, data: bytes) -> None:
        try:
            self._tokenizer = fastokens.Tokenizer.from_json_str(data.decode())
        except ValueError:
            filled = _without_holes(data)
            if filled is None:
                raise
            self._tokenizer = fastokens.Tokenizer.from_json_str(filled)
        self._tokenizer.no_truncation()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of the texts."""
        ids, offsets = self._tokenizer.encode_batch_flat(
            list(texts), add_special_tokens=False, split_special_tokens=True
        )
        return Encoded(np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8"))


def _without_holes(data: bytes) -> str | None:
    """Return a byte-level `tokenizer.json` with a token for each id that has none.

    None for one of another kind, without holes, or with more than `MOST_HOLES`.
    fastokens refuses holes, which tiktoken's own vocabularies have. What fills them begins with a letter that stands
    for no byte, so no text becomes one.
    """
    record = json.loads(data)
    vocab = (record.get("model") or {}).get("vocab")
    if not isinstance(vocab, dict) or "ByteLevel" not in json.dumps(record.get("pre_tokenizer")):
        return None
    used = {*vocab.values(), *(token["id"] for token in record.get("added_tokens") or ())}
    if not 0 < max(used, default=-1) + 1 - len(used) <= MOST_HOLES:
        return None
    vocab |= {f"{_NO_BYTE}{number}": number for number in range(max(used)) if number not in used}
    return json.dumps(record)


class EncoderChoice(NamedTuple):
    """The fast encoder where it agrees with the truth, otherwise None and the reason."""

    tokenizer: Tokenizer
    truth: Encoder
    fast: Encoder | None
    reason: str


def choose_encoder(data: bytes, *, memo: Path | None = None) -> EncoderChoice:
    """Return the encoders for a `tokenizer.json`; the probe takes some 50 ms beside loading.

    With `memo`, a folder, the probe's answer is remembered for this file and these versions of both libraries.
    """
    tokenizer = load_tokenizer(data)
    truth = TokenizersEncoder(tokenizer)
    try:
        fast = FastEncoder(data)
    except ValueError as error:
        return EncoderChoice(tokenizer, truth, None, f"fastokens cannot load this tokenizer: {error}")
    reason = None if memo is None else encoder_memo.recall(memo, data)
    if reason is None:
        reason = _difference(fast, truth, tokenizer)
        if memo is not None:
            encoder_memo.remember(memo, data, reason)
    if reason:
        return EncoderChoice(tokenizer, truth, None, reason)
    return EncoderChoice(tokenizer, truth, fast, "fastokens agrees on the probe")


def _difference(fast: Encoder, truth: Encoder, tokenizer: Tokenizer) -> str:
    """Return on what the encoders differ; an empty string if on nothing."""
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    for text in probe_texts(special):
        if not fast.encode([text]).equals(truth.encode([text])):
            return f"fastokens gives other ids for {text[:40]!r}"
    return ""


@lru_cache(maxsize=2)
def chosen_encoder(tokenizer: FileRef) -> EncoderChoice:
    """Return the encoders for a file, remembered in this process: loading a large vocabulary takes a second."""
    return choose_encoder(fs.read_file(tokenizer), memo=encoder_memo.memo_folder())


def probe_texts(special: Sequence[str]) -> list[str]:
    """Return texts on which encoders differ if they differ: borders of the split, Unicode, control strings."""
    generator = random.Random(0)
    ranges = ((0x20, 0x7F), (0, 0x250), (0x300, 0x600), (0x900, 0xE00), (0x2000, 0x3100), (0x4E00, 0x5000),
              (0xAC00, 0xAD00), (0xF900, 0xFFFF), (0x1F300, 0x1FAFF), (0x10000, 0x10FFFF))  # fmt: skip
    scrambled = ["".join(chr(generator.randrange(*generator.choice(ranges))) for _ in range(400)) for _ in range(20)]
    return [
        "def f(x):\n    if x > 10_000:\n\t\treturn  'it''s'  # don't, we'LL, I'm\r\n\r\n\n   \n",
        "1 12 123 1234 12345678901 3.14159e-10 0xFFFF ٣٤٥ ½ Ⅷ",
        "   leading\u00a0no-break\u2003em \u200bzero\ufeffBOM trailing   ",
        "e\u0301 \u00e9 \ufb01 \u212b \uac00 \u1100\u1161 ｶﾞ 汉字かなカナ العربية עברית हिन्दी ไทย",
        "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 \U0001d518 \U000e0041 \x00\x01\x1f\x7f\x85\u2028\u2029",
        " " * 300 + "\n" * 50 + "\t" * 50 + "a" * 500 + "=" * 200,
        "".join(map(chr, range(0x20, 0x3000, 3))),
        "".join(f"{token}x {token[:-1]} {token}{token}" for token in special),
        *scrambled,
    ]
