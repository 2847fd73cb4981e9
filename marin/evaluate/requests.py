"""What is scored: continuations of contexts, as token ids, and how text becomes them.

Invariant: context and continuation are tokenized together, and the ids are split where the continuation begins. A
token that reaches over the border belongs to the continuation. Spaces at the end of a context move to the
continuation, because tokenizers put a space with the word after it.
"""

import functools
import json
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from marin.base.errors import DataError
from marin.evaluate.checkpoint import LoadedCheckpoint


class Request(NamedTuple):
    """A continuation to score after a context; neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


class Pair(NamedTuple):
    """A context and its continuation, as text."""

    context: str
    continuation: str


class Fitted(NamedTuple):
    """A request that fits the model, and how many tokens of its context were cut off on the left."""

    request: Request
    cut: int


def encode_pairs(checkpoint: LoadedCheckpoint, pairs: Sequence[Pair], *, chat: bool = False) -> list[Request]:
    """Return the ids of each pair, start tokens once before them; DataError for a continuation without a token.

    `chat`: contexts were written by a chat template, which writes start tokens and other control strings itself, and
    ends where the answer begins, space or not.
    """
    tokenizer = with_plain_offsets(checkpoint.tokenizer_json, parse=chat)
    encodings = tokenizer.encode_batch(["".join(pair) for pair in pairs], add_special_tokens=False)
    leading, start = () if chat else checkpoint.leading_ids, checkpoint.start_ids
    requests = []
    for pair, encoding in zip(pairs, encodings, strict=True):
        border = len(pair.context) if chat else len(pair.context.rstrip())
        ends = (place for place, (_, end) in enumerate(encoding.offsets) if end > border)
        split = next(ends, len(encoding.ids))
        if split == len(encoding.ids):
            raise DataError(
                f"the continuation {pair.continuation[:40]!r} has no token of its own",
                where=f"after the context {pair.context[-40:]!r}",
                hint="give every continuation some text that the tokenizer keeps",
            )
        context = (*leading, *encoding.ids[:split]) or start
        requests.append(Request(context, tuple(encoding.ids[split:])))
    return requests


@functools.lru_cache(maxsize=2)
def with_plain_offsets(tokenizer_json: bytes, *, parse: bool = False) -> Tokenizer:
    """Return the tokenizer without its post-processor, which may trim spaces from the offsets.

    `parse`: control strings are tokens of their own, not text.
    """
    tokenizer = Tokenizer.from_str(json.dumps({**json.loads(tokenizer_json), "post_processor": None}))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not parse
    return tokenizer


def fit(request: Request, size: int) -> Fitted:
    """Cut the context on the left until the model, which sees `size` tokens at once, can score the continuation.

    The last token is only predicted. Raises DataError when the continuation alone is too long.
    """
    context, continuation = request
    if len(continuation) > size:
        raise DataError(
            f"a continuation of {len(continuation)} tokens is longer than the model's context of {size}",
            hint="score a model with a longer context, shorten the text, or leave the item out",
        )
    room = size + 1 - len(continuation)
    cut = max(0, len(context) - room)
    return Fitted(Request(context[cut:], continuation), cut)
