"""tiktoken rank files (`base64 rank` a line) as `tokenizer.json`.

A rank file holds tokens, not merges: tiktoken joins the adjacent pair whose union has the lowest rank, leftmost first.
So every split of a token into two others is a merge, at the token's rank. Two different splits of one token that meet
in one word could still be taken in another order; `convert` therefore compares both on probes, on every token, and on
pairs of tokens, which are words that no rank names.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from marin.base.errors import ConfigurationError, DataError
from marin.data.token_text import byte_letters

PAIRS, PAIR_STRIDE = 5000, 7919
"""How many pairs of tokens are compared, and how far apart: a prime, so that it meets all."""

_NOT_EXACT = "use the `tokenizer.json` of this tokenizer"


def is_rank_file(data: bytes) -> bool:
    """Whether bytes look like a rank file: a first line of base64, a space and digits."""
    token, _, rank = data.partition(b"\n")[0].strip().partition(b" ")
    return bool(token) and rank.isdigit() and len(token) % 4 == 0


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Return the rank of each token; DataError names a line that is none, a token or a rank that comes twice."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            encoded, rank = line.split()
            token, value = base64.b64decode(encoded, validate=True), int(rank)
        except (ValueError, binascii.Error) as error:
            raise DataError(
                f"line {number} of the rank file is not `base64 rank` (bad_rank_line)",
                where=f"line {number}",
                hint="give the rank file as it was published",
            ) from error
        if token in ranks:
            raise DataError(
                f"token {token!r} has ranks {ranks[token]} and {value} (duplicate_token)",
                where=f"line {number}",
                hint="give the rank file as it was published",
            )
        ranks[token] = value
    if len(set(ranks.values())) < len(ranks):
        raise DataError("two tokens of the rank file share a rank (duplicate_id)", hint="give the file as published")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise DataError(
            f"{len(missing)} bytes have no rank, the first is 0x{missing[0]:02x} (missing_bytes)",
            hint="give the rank file of a byte-level tokenizer",
        )
    return ranks


def convert(data: bytes, *, pattern: str, special_tokens: Mapping[str, int], probes: Iterable[str]) -> bytes:
    """Return the `tokenizer.json` of a rank file; `pattern` says where merges may not cross.

    Raises ConfigurationError for a pattern that means something else here, DataError (`inexact`) when the converted
    tokenizer gives other ids than tiktoken's algorithm.
    """
    if re.search(r"\{\d+(,\d*)?\}\+", pattern):
        raise ConfigurationError(
            "`{m,n}+` is possessive in tiktoken and a repetition here",
            where="pattern",
            hint=r"write `{m,n}` without `+`, or an atomic group such as `(?>\p{N}{1,3})`",
        )
    ranks = read_ranks(data)
    letters = byte_letters()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [
        (names[token[:at]], names[token[at:]])
        for token in sorted(ranks, key=ranks.__getitem__)
        for at in sorted(range(1, len(token)), key=lambda at: _split_rank(ranks, token, at))
        if token[:at] in ranks and token[at:] in ranks
    ]
    vocab = {names[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for token in sorted(special_tokens, key=special_tokens.__getitem__):
        _add_special(tokenizer, token, special_tokens[token])
    _check_exact(tokenizer, ranks, probes)
    return _with_ids(tokenizer, special_tokens)


def encode_word(ranks: Mapping[bytes, int], word: bytes) -> list[int]:
    """Return the ids of one word by tiktoken's algorithm (`byte_pair_merge` of its `lib.rs`), for comparison."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while len(parts) > 1:
        at = min(range(len(parts) - 1), key=lambda at: ranks.get(parts[at] + parts[at + 1], 2**40))
        joined = parts[at] + parts[at + 1]
        if joined not in ranks:
            break
        parts[at : at + 2] = [joined]
    return [ranks[part] for part in parts]


def _split_rank(ranks: Mapping[bytes, int], token: bytes, at: int) -> tuple[int, int]:
    return ranks.get(token[:at], 2**40), ranks.get(token[at:], 2**40)


def _add_special(tokenizer: Tokenizer, token: str, number: int) -> None:
    if tokenizer.id_to_token(number) is not None or tokenizer.token_to_id(token) is not None:
        raise ConfigurationError(
            f"special token {token!r} has id {number}, and one of them is taken (duplicate_id)",
            where="special_tokens",
            hint="give each special token a free id, as its publisher does",
        )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])


def _with_ids(tokenizer: Tokenizer, special_tokens: Mapping[str, int]) -> bytes:
    """Return the file with the ids of special tokens as given: `tokenizers` itself numbers them without holes."""
    record = json.loads(tokenizer.to_str())
    for token in record["added_tokens"]:
        token["id"] = special_tokens[token["content"]]
        record["model"]["vocab"][token["content"]] = token["id"]
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()


def _check_exact(tokenizer: Tokenizer, ranks: Mapping[bytes, int], probes: Iterable[str]) -> None:
    letters = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokens = [token.decode() for token in ranks if len(token) > 1 and _is_text(token)]
    pairs = (tokens[at] + tokens[at * PAIR_STRIDE % len(tokens)] for at in range(min(len(tokens), PAIRS)))
    tokenizer.encode_special_tokens = True
    for text in (*probes, *tokens, *pairs):
        words = [bytes(letters[each] for each in word) for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        expected = [number for word in words for number in encode_word(ranks, word)]
        if tokenizer.encode(text, add_special_tokens=False).ids != expected:
            raise DataError(
                f"the converted tokenizer gives other ids than tiktoken for {text[:40]!r} (inexact)", hint=_NOT_EXACT
            )


def _is_text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
