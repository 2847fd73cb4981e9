"""Documents to token shards, by the fast encoder where it is exact.

Invariant: the ids are those of `tokenizers`, by whichever path; each document ends with one end-of-text token, which
nothing inside a text can produce. One document of 500, chosen by content, is encoded both ways; on any difference
the shard is encoded again by `tokenizers`, with a warning. Texts are handled as Arrow columns: a Python object a text
is made once, for the encoder.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data import counts
from marin.data.counts import Counts
from marin.data.encode import Encoded, Encoder, EncoderChoice, chosen_encoder
from marin.data.source_counts import bounded, count_sources
from marin.data.text_columns import TextBatch, text_batches
from marin.data.token_files import DocumentColumns, token_dtype, write_tokens
from marin.data.tokenizer import control_strings, load_tokenizer, num_ids, special_id
from marin.graph.files import FileRef, Output, Shard

SpecialInText = Literal["text", "error"]

BATCH_BYTES = 4_000_000
CHECK_ONE_OF = 500
FEW_TOKENS = 64
"""Documents shorter than this on average are framed by one mask, longer ones by a copy each."""

_log = logging.getLogger(__name__)


class EncoderMismatch(Exception):
    """The fast encoder gave other ids than the truth."""


def tokenize_shard(
    shard: Shard,
    output: Output,
    *,
    tokenizer: FileRef,
    eos: str,
    bos: str | None = None,
    special_in_text: SpecialInText = "text",
) -> Json:
    """Write the shard's documents as `tokens.npy` and `index.arrow`; returns counts, also by source, and of tokens.

    Each document is `[bos] text eos`. Control strings inside a text are text, counted as `control_strings`, or with
    `special_in_text="error"` a DataError. All ids of the shard are held in memory, two or four bytes each.
    """
    encoders = chosen_encoder(tokenizer)
    return encode_shard(shard, output, encoders, eos=eos, bos=bos, special_in_text=special_in_text)


def encode_shard(
    shard: Shard,
    output: Output,
    encoders: EncoderChoice,
    *,
    eos: str,
    bos: str | None = None,
    special_in_text: SpecialInText = "text",
) -> Json:
    """Do the work of `tokenize_shard` with encoders that are at hand."""
    tokenizer = encoders.tokenizer
    frame = _Frame(
        before=[] if bos is None else [special_id(tokenizer, bos)],
        after=[special_id(tokenizer, eos)],
        num_ids=num_ids(tokenizer),
    )
    control = _Control(control_strings(tokenizer), special_in_text)
    if encoders.fast is None:
        _log.warning("encoding %s slowly: %s", shard.name, encoders.reason)
        return _encode(shard, output, encoders.truth, None, frame, control)
    try:
        return _encode(shard, output, encoders.fast, encoders.truth, frame, control)
    except EncoderMismatch as error:
        _log.warning("encoding %s again, with tokenizers: fastokens gave other ids for document %s", shard.name, error)
        return _encode(shard, output, encoders.truth, None, frame, control)


def total(records: Iterable[Any], *, tokenizer_json: bytes, eos: str) -> dict[str, Any]:  # Any: JSON of the shards
    """Return the sums over all shards, and what a model must know of the tokenizer."""
    tokenizer = load_tokenizer(tokenizer_json)
    ids = num_ids(tokenizer)
    return {
        **bounded(counts.total(records)),
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
        assert not ids.size or int(ids.max()) < self.num_ids, "an id beyond the tokenizer's vocabulary"
        added = len(self.before) + len(self.after)
        lengths = np.diff(offsets.astype(np.int64)) + added
        ends = np.cumsum(lengths)
        framed = np.empty(len(ids) + added * len(lengths), self.dtype)
        places = [(ends - lengths + at, token) for at, token in enumerate(self.before)]
        places += [(ends - len(self.after) + at, token) for at, token in enumerate(self.after)]
        if len(ids) < FEW_TOKENS * len(lengths):
            is_text = np.ones(len(framed), dtype=np.bool_)
            for where, _ in places:
                is_text[where] = False
            framed[is_text] = ids
        else:
            bounds, last = offsets.tolist(), len(self.after)
            for number, end in enumerate(ends.tolist()):
                begin, stop = bounds[number], bounds[number + 1]
                framed[end - last - (stop - begin) : end - last] = ids[begin:stop]
        for where, token in places:
            framed[where] = token
        return framed, lengths


class _Control:
    """Finds control strings in texts; RE2 looks for all of them at once."""

    def __init__(self, strings: Sequence[str], policy: SpecialInText) -> None:
        self._pattern = "|".join(re.escape(each) for each in sorted(strings, key=len, reverse=True))
        self._policy = policy

    def count(self, batch: TextBatch) -> int:
        """Return how many texts hold one; DataError names the first if that is an error."""
        if not self._pattern:
            return 0
        found = pc.match_substring_regex(batch.texts, self._pattern)
        number = int(found.true_count)
        if number and self._policy == "error":
            row = found.to_pylist().index(True)
            name, text = batch.names[row].as_py(), batch.texts[row].as_py()
            match = re.search(self._pattern, text)
            raise DataError(
                f"document `{name}` holds the control string {match[0] if match else ''!r}",
                where=f"{batch.sources[row].as_py()}",
                hint='drop or clean such documents, or give special_in_text="text" to encode it as text',
            )
        return number


def _encode(
    shard: Shard, output: Output, encoder: Encoder, check: Encoder | None, frame: _Frame, control: _Control
) -> Json:
    result = Counts()
    parts, lengths, ids = [], [np.empty(0, np.int64)], bytearray()
    sources = [pa.array([], pa.large_string())]
    for batch in text_batches(shard, BATCH_BYTES):
        texts = batch.texts.to_pylist()
        encoded = encoder.encode(texts)
        hashes = batch.ids()
        if check is not None:
            _check(encoded, check, texts, hashes, batch.names)
        tokens, counted = frame.around(encoded.ids, encoded.offsets)
        parts.append(tokens)
        lengths.append(counted)
        ids += b"".join(hashes)
        sources.append(batch.sources)
        result.documents_out += len(texts)
        result.bytes += batch.num_bytes
        result.notes["control_strings"] += control.count(batch)
    columns = DocumentColumns(
        np.concatenate(lengths), np.frombuffer(bytes(ids), np.uint8).reshape(-1, 16), pa.concat_arrays(sources)
    )
    num_tokens = write_tokens(output, parts, frame.dtype, columns)
    return {**result.record(), **count_sources(columns.sources, columns.lengths), "tokens": num_tokens}


def _check(encoded: Encoded, truth: Encoder, texts: Sequence[str], hashes: Sequence[bytes], names: pa.Array) -> None:
    for row, number in enumerate(hashes):
        if int.from_bytes(number, "little") % CHECK_ONE_OF == 0:
            expected = truth.encode([texts[row]]).ids
            if not np.array_equal(encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]], expected):
                raise EncoderMismatch(names[row].as_py())
