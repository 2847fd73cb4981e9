"""Tokenizers as Hugging Face `tokenizer.json` bytes: train one, load one, ask for its ids.

The truth is the bytes of the file, never an object. Invariant: training is a function of the set of texts and the
options, whatever the shards and the number of threads.
"""

from collections.abc import Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from marin.base.errors import ConfigurationError, DataError, did_you_mean
from marin.data.documents import iter_texts
from marin.data.hashes import text_hash
from marin.graph.files import Shard

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where merges may not cross, as in Llama 3: digits by threes, newlines with the indentation before them."""

NUM_BYTES = 256


def train_tokenizer(
    shards: Sequence[Shard], *, vocab_size: int, every: int = 1, special_tokens: Sequence[str]
) -> bytes:
    """Return the `tokenizer.json` of a byte-level BPE trained on every n-th text, chosen by the text's hash.

    Special tokens have the first ids, then the 256 bytes, then merges (of pairs seen at least twice). No normaliser,
    so that any text is given back exactly. DataError when there is no text or too little for `vocab_size` entries.
    """
    smallest = NUM_BYTES + len(special_tokens)
    if vocab_size < smallest:
        raise ConfigurationError(
            f"vocab_size={vocab_size} has no room for {NUM_BYTES} bytes and {len(special_tokens)} special tokens",
            where="vocab_size",
            hint=f"ask for at least {smallest}",
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = _Sample(shards, every)
    tokenizer.train_from_iterator(sample, trainer)
    _check_trained(tokenizer, sample, vocab_size)
    return tokenizer.to_str().encode()


class _Sample:
    """Iterates over the texts whose hash is a multiple of `every`, and counts them."""

    def __init__(self, shards: Sequence[Shard], every: int) -> None:
        self.every = every
        self.num_texts = 0
        self._shards = shards

    def __iter__(self) -> Iterator[str]:
        for text in iter_texts(self._shards):
            if text_hash(text) % self.every == 0:
                self.num_texts += 1
                yield text


def _check_trained(tokenizer: Tokenizer, sample: _Sample, vocab_size: int) -> None:
    if not sample.num_texts:
        raise DataError(
            f"no text to train a tokenizer on (one of {sample.every} is taken)",
            hint="give more documents" if sample.every == 1 else "lower `every`, or give more documents",
        )
    reached = tokenizer.get_vocab_size()
    if reached < vocab_size:
        more = "give more text" if sample.every == 1 else f"give more text (`every` is {sample.every})"
        raise DataError(
            f"{sample.num_texts} texts yield {reached} vocabulary entries, {vocab_size} are asked for",
            where="vocab_size",
            hint=f"ask for vocab_size={reached} or less, or {more}",
        )


def load_tokenizer(data: bytes) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, without truncation and padding; DataError if it is none."""
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except ValueError as error:
        raise DataError(
            f"not a tokenizer.json: {error}",
            where="tokenizer.json",
            hint="give the `tokenizer.json` of a fast tokenizer",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that must be in the vocabulary; DataError suggests a near one."""
    found = tokenizer.token_to_id(token)
    if found is None:
        added = [added.content for added in tokenizer.get_added_tokens_decoder().values()]
        raise DataError(
            f"the tokenizer has no token {token!r}",
            where="tokenizer.json",
            hint=did_you_mean(token, added) or f"its special tokens are {', '.join(map(repr, added)) or 'none'}",
        )
    return int(found)


def num_ids(tokenizer: Tokenizer) -> int:
    """Return the largest id over vocabulary and added tokens, plus one: rows that an embedding needs."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def control_strings(tokenizer: Tokenizer) -> list[str]:
    """Return the special tokens as they stand in text, such as `<|endoftext|>`, in order of id."""
    return [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]
