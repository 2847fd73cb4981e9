"""SentencePiece `.model` files as `tokenizer.json`, where that gives the same ids.

The file is a protocol buffer, of which a few fields are read here (sentencepiece_model.proto of google/sentencepiece):
pieces with score and type, the kind of model, and the normaliser. `convert` compares the result with the
`sentencepiece` library on probes, so it needs that library, an extra of marin.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from marin.base.errors import ConfigurationError, DataError
from marin.base.lazy import LazyModule
from marin.data.token_text import SPACE

sentencepiece = LazyModule("sentencepiece")

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


@dataclass
class SentencePieceModel:
    """What a `.model` file says, as far as ids depend on it; `pieces` are text, score and type by id."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    kind: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True

    def ids(self, kind: int) -> list[int]:
        """Return the ids of the pieces of a type."""
        return [number for number, piece in enumerate(self.pieces) if piece[2] == kind]


def read_model(data: bytes) -> SentencePieceModel:
    """Return what a `.model` file says; DataError (`not_sentencepiece`) for other bytes."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(data):
            if number == 1:
                piece = dict(_fields(value))
                score = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0]
                model.pieces.append((piece[1].decode(), score, piece.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(_fields(value))
                model.kind, model.byte_fallback = trainer.get(3, UNIGRAM), bool(trainer.get(35, 0))
            elif number == 3:
                rules = dict(_fields(value))
                model.charsmap = rules.get(2, b"")
                model.add_dummy_prefix = bool(rules.get(3, 1))
                model.remove_extra_whitespaces = bool(rules.get(4, 1))
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise DataError("not a SentencePiece model (not_sentencepiece)", hint="give a `.model` file") from error
    if not model.pieces:
        raise DataError("a SentencePiece model without pieces (not_sentencepiece)", hint="give a `.model` file")
    return model


def convert(data: bytes, *, probes: Iterable[str]) -> tuple[bytes, dict[str, str]]:
    """Return the `tokenizer.json` of a `.model` file, and its `eos` and `bos` where it has them.

    DataError (`inexact`) when the ids differ on a probe, or the model is neither unigram nor BPE.
    """
    model = read_model(data)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    except ImportError as error:
        raise ConfigurationError(
            "a SentencePiece model is converted with the `sentencepiece` library beside it, which is not installed",
            hint="pip install 'marin[sentencepiece]', or give a `tokenizer.json`",
        ) from error
    except RuntimeError as error:
        raise DataError(
            f"not a SentencePiece model: {error} (not_sentencepiece)", hint="give a `.model` file"
        ) from error
    if model.kind not in (UNIGRAM, BPE):
        raise DataError("a word or character model has no exact form here (inexact)", hint="give a `tokenizer.json`")
    tokenizer = _tokenizer(model)
    tokenizer.encode_special_tokens = True
    joined = (f"a{model.pieces[at][0]} b" for at in model.ids(USER_DEFINED))
    for text in (*probes, *joined):
        if tokenizer.encode(text, add_special_tokens=False).ids != processor.encode(text):
            raise DataError(
                f"the converted tokenizer gives other ids than sentencepiece for {text[:40]!r} (inexact)",
                hint="give the `tokenizer.json` of this tokenizer",
            )
    found = {"eos": processor.eos_id(), "bos": processor.bos_id()}
    ends = {name: model.pieces[number][0] for name, number in found.items() if number >= 0}
    return tokenizer.to_str().encode(), ends


def _tokenizer(model: SentencePieceModel) -> Tokenizer:
    unknown = model.ids(UNKNOWN)
    if model.kind == UNIGRAM:
        scored = [(text, score) for text, score, _ in model.pieces]
        tokenizer = Tokenizer(models.Unigram(scored, unknown[0] if unknown else None, model.byte_fallback))
    else:
        vocab = {text: number for number, (text, _, _) in enumerate(model.pieces)}
        unk_token = model.pieces[unknown[0]][0] if unknown else None
        bpe = models.BPE(vocab, _merges(model, vocab), unk_token=unk_token, fuse_unk=True)
        bpe.byte_fallback = model.byte_fallback
        tokenizer = Tokenizer(bpe)
    rules: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_whitespaces:
        rules += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    # Not `Metaspace`: it adds no prefix to a text that begins with a space.
    if model.add_dummy_prefix:
        rules.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence([*rules, normalizers.Replace(" ", SPACE)])
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(
        [AddedToken(model.pieces[at][0], normalized=False) for at in sorted([*model.ids(CONTROL), *unknown])]
    )
    tokenizer.add_tokens([AddedToken(model.pieces[at][0], normalized=False) for at in model.ids(USER_DEFINED)])
    return tokenizer


def _merges(model: SentencePieceModel, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Return every split of a piece into two others, best score first: a BPE model joins by the score of the union."""
    joined = [(score, text) for text, score, kind in model.pieces if kind in (NORMAL, USER_DEFINED) and len(text) > 1]
    return [
        (text[:at], text[at:])
        for _, text in sorted(joined, key=lambda piece: -piece[0])
        for at in range(1, len(text))
        if text[:at] in vocab and text[at:] in vocab
    ]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:  # Any: an int, or the bytes of a string or message
    """Yield the fields of a protocol buffer message: number, and value by wire type."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value: Any
            value, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(data):
            raise ValueError("a field is cut off")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
