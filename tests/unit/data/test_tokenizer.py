"""Tokenizer training: a function of the set of texts, exact on any text, and plain about too little data."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from marin.base.errors import ConfigurationError, DataError
from marin.data.tokenizer import load_tokenizer, num_ids, special_id, train_tokenizer
from marin.graph.files import Shard

EOS = "<|endoftext|>"
WORDS = ["alpha", "beta", "gamma", "delta", "return", "self", "import", "'quoted'", "1234", "\n    "]
TEXTS = [" ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 20)) for i in range(40)]

Documents = Callable[..., list[Shard]]


def train(shards: list[Shard], vocab_size: int = 290, **options: int) -> bytes:
    return train_tokenizer(shards, vocab_size=vocab_size, special_tokens=(EOS,), **options)


def test_train_tokenizer_is_independent_of_shards_and_order(documents: Documents) -> None:
    one = train(documents(TEXTS))
    assert one == train(documents(TEXTS[25:], [], TEXTS[:10], TEXTS[10:25]))


def test_train_tokenizer_is_independent_of_threads(documents: Documents) -> None:
    shards = documents(TEXTS)
    program = (
        "import sys; from marin.data.tokenizer import train_tokenizer; from marin.graph.files import FileRef, Shard;"
        "shard = Shard('', '', (FileRef('documents.parquet', sys.argv[1], 0, sys.argv[2]),));"
        "sys.stdout.buffer.write(train_tokenizer([shard], vocab_size=290, special_tokens=('<|endoftext|>',)))"
    )
    for threads in ("1", "4"):
        made = subprocess.run(
            [sys.executable, "-c", program, shards[0].files[0].url, shards[0].files[0].digest],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"},
            capture_output=True,
            check=True,
        )
        assert made.stdout == train(shards)


def test_train_tokenizer_has_special_tokens_first_and_the_size_asked_for(documents: Documents) -> None:
    tokenizer = load_tokenizer(train(documents(TEXTS)))
    assert special_id(tokenizer, EOS) == 0
    assert num_ids(tokenizer) == 290


def test_train_tokenizer_with_too_little_text_says_what_can_be_reached(documents: Documents) -> None:
    with pytest.raises(DataError, match=r"yield 3[0-9]+ vocabulary entries, 4096 are asked for") as caught:
        train(documents(TEXTS), vocab_size=4096)
    assert "vocab_size=3" in caught.value.hint


@pytest.mark.parametrize("texts", [[], [""]])
def test_train_tokenizer_of_no_text_is_a_data_error(documents: Documents, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        train(documents(texts))


def test_train_tokenizer_that_takes_none_of_few_texts_points_at_every(documents: Documents) -> None:
    with pytest.raises(DataError, match="no text") as caught:
        train(documents(["one text"]), every=10**9)
    assert "lower `every`" in caught.value.hint


def test_train_tokenizer_without_room_for_the_bytes_is_refused(documents: Documents) -> None:
    with pytest.raises(ConfigurationError, match="no room for 256 bytes") as caught:
        train(documents(TEXTS), vocab_size=256)
    assert "257" in caught.value.hint


def test_load_tokenizer_of_other_bytes_is_a_data_error() -> None:
    for data in (b"", b"{}", b"\xff\x00", b"[1]"):
        with pytest.raises(DataError, match=r"not a tokenizer.json"):
            load_tokenizer(data)


def test_special_id_of_an_unknown_token_suggests_a_near_one(documents: Documents) -> None:
    tokenizer = load_tokenizer(train(documents(TEXTS)))
    with pytest.raises(DataError, match="no token") as caught:
        special_id(tokenizer, "<|end_of_text|>")
    assert EOS in caught.value.hint
