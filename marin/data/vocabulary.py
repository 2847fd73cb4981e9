"""What is wrong with the ids of a `tokenizer.json`, by name.

Checked on the file itself and on what `tokenizers` makes of it: that renumbers an added token whose id is taken, or
whose id leaves a hole, and says nothing of it.
Names of what is found: `duplicate_token`, `duplicate_id`, `id_out_of_range`, `id_beyond_vocabulary`, `holes`,
`renumbered`.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from tokenizers import Tokenizer

from marin.base.errors import DataError

Holes = Literal["fail", "keep"]

LARGEST_ID = 2**31 - 1
"""The largest id that every format and library takes: Megatron's and Arrow's are int32."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs: a dict would hide a key that comes twice."""


def check_vocabulary(data: bytes, *, holes: Holes) -> None:
    """Raise DataError when ids of a `tokenizer.json` come twice, lie outside, or leave holes that are not accepted.

    With holes accepted, ids must still be the file's once it is loaded.
    """
    record = json.loads(data)
    pairs = list(_vocabulary(data))
    added = [(str(token["content"]), int(token["id"])) for token in record.get("added_tokens") or ()]
    for name, count in Counter(token for token, _ in pairs).items():
        if count > 1:
            _fail("duplicate_token", f"token {name!r} stands {count} times in the vocabulary")
    known = dict(pairs)
    for token, number in added:
        if known.setdefault(token, number) != number:
            _fail("duplicate_token", f"added token {token!r} has id {number}, and {known[token]} in the vocabulary")
    used: dict[int, str] = {}
    for token, number in known.items():
        if not 0 <= number <= LARGEST_ID:
            _fail("id_out_of_range", f"token {token!r} has id {number}")
        if number in used:
            _fail("duplicate_id", f"tokens {used[number]!r} and {token!r} share id {number}")
        used[number] = token
    for token, number in _processor_ids(record.get("post_processor")):
        if known.get(token) != number:
            _fail("id_beyond_vocabulary", f"the post-processor puts in {token!r} with id {number}, which is not its id")
    missing = max(used, default=-1) + 1 - len(used)
    if missing and holes == "fail":
        first = next(number for number in range(len(used) + 1) if number not in used)
        raise DataError(
            f"{missing} ids up to {max(used)} have no token, the first is {first} (holes)",
            where="tokenizer.json",
            hint='give holes="keep" if the model was made so: the embedding keeps a row for each',
        )
    loaded = Tokenizer.from_buffer(data).get_vocab(with_added_tokens=True)
    for token, number in known.items():
        if loaded.get(token) != number:
            _fail("renumbered", f"token {token!r} has id {number}, and `tokenizers` gives it {loaded.get(token)}")


def _fail(name: str, what: str) -> None:
    raise DataError(
        f"{what} ({name})", where="tokenizer.json", hint="give the file as its publisher has it, or mend it"
    )


def _vocabulary(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield token and id of the model's vocabulary, those that come twice as often as they do."""
    record = json.loads(data, object_pairs_hook=_Pairs)
    model = dict(dict(record).get("model") or ())
    vocab = model.get("vocab") or ()
    if isinstance(vocab, _Pairs):
        yield from ((token, int(number)) for token, number in vocab)
    else:  # Unigram: a list of token and score
        yield from ((str(entry[0]), number) for number, entry in enumerate(vocab))


def _processor_ids(processor: Any) -> Iterator[tuple[str, int]]:  # Any: JSON
    """Yield the special tokens that a post-processor would put in, with their ids."""
    if not processor:
        return
    for inner in processor.get("processors") or ():
        yield from _processor_ids(inner)
    special = processor.get("special_tokens") or {}
    if isinstance(special, dict):
        for each in special.values():
            yield from zip(each["tokens"], each["ids"], strict=False)
    for name in ("sep", "cls"):
        if isinstance(processor.get(name), list):
            token, number = processor[name]
            yield token, number
