"""Documents to token shards, by the fast encoder where it is exact.

Invariant: the ids are those of `tokenizers`, by whichever path; each document ends with one end-of-text token, which
nothing inside a text can produce. One document of 500, chosen by content, is encoded both ways; on any difference
the shard is encoded again by `tokenizers`, with a warning.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from marin.base.json import Json
from marin.data import counts
from marin.data.counts import Counts
from marin.data.documents import Document, by_size, read_documents
from marin.data.encode import Encoded, Encoder, EncoderChoice, chosen_encoder
from marin.data.hashes import document_id
from marin.data.token_files import INDEX_SCHEMA, TOKENS, fixed_bytes, token_dtype, write_array, write_index
from marin.data.tokenizer import load_tokenizer, num_ids, special_id
from marin.graph.files import FileRef, Output, Shard

BATCH_CHARACTERS = 4_000_000
CHECK_ONE_OF = 500

_log = logging.getLogger(__name__)


class EncoderMismatch(Exception):
    """The fast encoder gave other ids than the truth."""


def tokenize_shard(shard: Shard, output: Output, *, tokenizer: FileRef, eos: str, bos: str | None = None) -> Json:
    """Write the shard's documents as `tokens.npy` and `index.arrow`; returns counts and the number of tokens.

    Each document is `[bos] text eos`. All ids of the shard are held in memory, two or four bytes each.
    """
    return encode_shard(shard, output, chosen_encoder(tokenizer), eos=eos, bos=bos)


def encode_shard(shard: Shard, output: Output, encoders: EncoderChoice, *, eos: str, bos: str | None = None) -> Json:
    """Do the work of `tokenize_shard` with encoders that are at hand."""
    tokenizer = encoders.tokenizer
    frame = _Frame(
        before=[] if bos is None else [special_id(tokenizer, bos)],
        after=[special_id(tokenizer, eos)],
        num_ids=num_ids(tokenizer),
    )
    if encoders.fast is None:
        _log.warning("encoding %s slowly: %s", shard.name, encoders.reason)
        return _encode(shard, output, encoders.truth, None, frame)
    try:
        return _encode(shard, output, encoders.fast, encoders.truth, frame)
    except EncoderMismatch as error:
        _log.warning("encoding %s again, with tokenizers: fastokens gave other ids for document %s", shard.name, error)
        return _encode(shard, output, encoders.truth, None, frame)


def total(records: Iterable[Any], *, tokenizer_json: bytes, eos: str) -> dict[str, Any]:  # Any: JSON of the shards
    """Return the sums over all shards, and what a model must know of the tokenizer."""
    tokenizer = load_tokenizer(tokenizer_json)
    ids = num_ids(tokenizer)
    return {
        **counts.total(records),
        "vocab_size": ids,
        "dtype": token_dtype(ids).name,
        "eos": eos,
        "eos_id": special_id(tokenizer, eos),
    }


class _Frame:
    """What stands around each text, and the type of the ids."""

    def __init__(self, before: list[int], after: list[int], num_ids: int) -> None:
        self.before = before
        self.after = after
        self.num_ids = num_ids
        self.dtype = token_dtype(num_ids)

    def around(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ids with the special ones put in, and the length of each document."""
        assert not ids.size or int(ids.max()) < self.num_ids
        bounds = offsets.astype(np.int64)
        places = np.stack([bounds[:-1]] * len(self.before) + [bounds[1:]] * len(self.after), axis=1).ravel()
        special = np.array((self.before + self.after) * (len(bounds) - 1), dtype=self.dtype)
        lengths = np.diff(bounds) + len(self.before) + len(self.after)
        return np.insert(ids.astype(self.dtype), places, special), lengths


def _encode(shard: Shard, output: Output, encoder: Encoder, check: Encoder | None, frame: _Frame) -> Json:
    result = Counts()
    parts, lengths, ids, sources = [], [np.empty(0, np.int64)], bytearray(), []
    for documents in by_size(read_documents(shard), BATCH_CHARACTERS):
        texts = [document.text for document in documents]
        encoded = encoder.encode(texts)
        names = [document_id(document.text, document.id) for document in documents]
        if check is not None:
            _check(encoded, check, documents, names)
        tokens, counted = frame.around(encoded.ids, encoded.offsets)
        parts.append(tokens)
        lengths.append(counted)
        ids += b"".join(names)
        sources += [document.source for document in documents]
        for text in texts:
            result.keep(text)
    ends = np.cumsum(np.concatenate(lengths)).astype(np.uint64)
    num_tokens = int(ends[-1]) if len(ends) else 0
    write_array(output, TOKENS, parts, (num_tokens,), frame.dtype)
    columns = [
        pa.array(ends),
        fixed_bytes(np.frombuffer(bytes(ids), np.uint8).reshape(-1, 16)),
        pa.array(sources, pa.large_string()).dictionary_encode(),
        pa.array(np.arange(len(ends), dtype=np.uint64)),
    ]
    write_index(output, pa.Table.from_arrays(columns, schema=INDEX_SCHEMA), [len(ends)])
    return {**result.record(), "tokens": num_tokens}


def _check(encoded: Encoded, truth: Encoder, documents: Sequence[Document], names: Sequence[bytes]) -> None:
    for row, name in enumerate(names):
        if int.from_bytes(name, "little") % CHECK_ONE_OF == 0:
            expected = truth.encode([documents[row].text]).ids
            if not np.array_equal(encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]], expected):
                raise EncoderMismatch(documents[row].id)
