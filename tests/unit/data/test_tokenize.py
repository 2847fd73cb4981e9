"""Tokenize: the ids of `tokenizers` by whichever encoder, one end-of-text token a document, nothing else special."""

import json
import logging
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from marin import fs
from marin.base.errors import DataError
from marin.data.arrays import open_array
from marin.data.encode import Encoded, choose_encoder
from marin.data.hashes import document_id
from marin.data.token_files import INDEX, TOKENS, read_index
from marin.data.tokenize import encode_shard, tokenize_shard, total
from marin.data.tokenizer import train_tokenizer
from marin.graph.files import FileRef, Shard

EOS = "<|endoftext|>"
CORPUS = ["def add(left, right):\n    return left + right\n" * 3, "the cat and the hat and the bat " * 5, "123 456 été"]

Documents = Callable[..., list[Shard]]
RunShards = Callable[..., list[Shard]]
MakeFile = Callable[[str, bytes], FileRef]


@pytest.fixture
def tokenizer(documents: Documents, make_file: MakeFile) -> FileRef:
    data = train_tokenizer(documents(CORPUS), vocab_size=280, special_tokens=(EOS,))
    return make_file("tokenizer.json", data)


def truth(file: FileRef) -> Tokenizer:
    loaded = Tokenizer.from_file(file.url)
    loaded.encode_special_tokens = True
    return loaded


def split_documents(shard: Shard) -> list[list[int]]:
    array = open_array(shard.file(TOKENS))
    ends = read_index(shard.file(INDEX))["end"].to_pylist()
    return [array.read(start, end).tolist() for start, end in zip([0, *ends], ends, strict=False)]


def test_tokenize_gives_ids_of_tokenizers_and_one_eos_each(
    documents: Documents, run_shards: RunShards, tokenizer: FileRef
) -> None:
    texts = [*CORPUS, "\0 \r\n \u2028 👩‍👩‍👧", " " * 1000, f"a {EOS} b{EOS}"]
    (shard,) = run_shards(tokenize_shard, documents(texts), tokenizer=tokenizer, eos=EOS)
    expected = [[*truth(tokenizer).encode(text, add_special_tokens=False).ids, 0] for text in texts]
    assert split_documents(shard) == expected
    assert [ids.count(0) for ids in expected] == [1] * len(texts)
    assert shard.value["tokens"] == sum(map(len, expected))
    assert shard.value["bytes"] == sum(len(text.encode()) for text in texts)
    index = read_index(shard.file(INDEX))
    assert index["id"].to_pylist() == [document_id(text, str(row)) for row, text in enumerate(texts)]
    assert index["source"].to_pylist() == ["records"] * len(texts)
    assert index["row"].to_pylist() == list(range(len(texts)))


def test_tokenize_with_bos_puts_it_before_each_document(
    documents: Documents, run_shards: RunShards, tokenizer: FileRef
) -> None:
    config = {"tokenizer": tokenizer, "eos": EOS}
    (plain,) = run_shards(tokenize_shard, documents(CORPUS), **config)
    (with_bos,) = run_shards(tokenize_shard, documents(CORPUS), bos=EOS, **config)
    assert split_documents(with_bos) == [[0, *ids] for ids in split_documents(plain)]


def test_tokenize_of_an_empty_shard_is_an_empty_token_shard(
    documents: Documents, run_shards: RunShards, tokenizer: FileRef
) -> None:
    (shard,) = run_shards(tokenize_shard, documents([]), tokenizer=tokenizer, eos=EOS)
    assert (split_documents(shard), shard.value["tokens"], open_array(shard.file(TOKENS)).shape) == ([], 0, (0,))


def test_tokenize_with_an_unknown_eos_fails(documents: Documents, run_shards: RunShards, tokenizer: FileRef) -> None:
    with pytest.raises(DataError, match="no token '</s>'"):
        run_shards(tokenize_shard, documents(CORPUS), tokenizer=tokenizer, eos="</s>")


class OffByOne:
    """An encoder that is fast and wrong."""

    def __init__(self, encoder: object) -> None:
        self._encoder = encoder

    def encode(self, texts: Sequence[str]) -> Encoded:
        ids, offsets = self._encoder.encode(texts)
        return Encoded(ids ^ 1, offsets)


def test_tokenize_when_the_fast_encoder_is_wrong_gives_the_same_bytes_and_warns(
    documents: Documents, run_shards: RunShards, tokenizer: FileRef, caplog: pytest.LogCaptureFixture
) -> None:
    shards = documents([f"the cat {number}" for number in range(4000)])
    (expected,) = run_shards(tokenize_shard, shards, tokenizer=tokenizer, eos=EOS)
    encoders = choose_encoder(fs.read(tokenizer.url))
    wrong = encoders._replace(fast=OffByOne(encoders.fast))
    with caplog.at_level(logging.WARNING):
        (shard,) = run_shards(encode_shard, shards, encoders=wrong, eos=EOS)
    assert shard.digest == expected.digest
    assert "fastokens gave other ids" in caplog.text


def test_choose_encoder_takes_the_fast_one_for_a_trained_tokenizer(tokenizer: FileRef) -> None:
    assert choose_encoder(fs.read(tokenizer.url)).fast is not None


def other_tokenizers() -> dict[str, Tokenizer]:
    word_level = Tokenizer(models.WordLevel({"the": 0, "[UNK]": 1, EOS: 2}, unk_token="[UNK]"))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    word_level.add_special_tokens([AddedToken(EOS)])
    lower = Tokenizer(models.BPE())
    lower.normalizer = normalizers.Lowercase()
    lower.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        special_tokens=[EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    lower.train_from_iterator(CORPUS, trainer)
    return {"word level": word_level, "lower case": lower}


@pytest.mark.parametrize("kind", other_tokenizers())
def test_tokenize_with_a_tokenizer_that_fastokens_cannot_take_is_exact(
    documents: Documents, run_shards: RunShards, make_file: MakeFile, kind: str
) -> None:
    file = make_file("tokenizer.json", other_tokenizers()[kind].to_str().encode())
    texts = ["the THE Cat", f"x{EOS}"]
    (shard,) = run_shards(tokenize_shard, documents(texts), tokenizer=file, eos=EOS)
    eos = truth(file).token_to_id(EOS)
    assert split_documents(shard) == [[*truth(file).encode(text).ids, eos] for text in texts]


def test_tokenize_ignores_truncation_and_padding_of_the_file(
    documents: Documents, run_shards: RunShards, tokenizer: FileRef, make_file: MakeFile
) -> None:
    cutting = truth(tokenizer)
    cutting.enable_truncation(4)
    cutting.enable_padding(length=64)
    file = make_file("cutting.json", cutting.to_str().encode())
    (expected,) = run_shards(tokenize_shard, documents(CORPUS), tokenizer=tokenizer, eos=EOS)
    (shard,) = run_shards(tokenize_shard, documents(CORPUS), tokenizer=file, eos=EOS)
    assert shard.digest == expected.digest


def test_tokenize_ids_above_uint16_are_uint32(
    documents: Documents, run_shards: RunShards, tokenizer: FileRef, make_file: MakeFile
) -> None:
    large = json.loads(truth(tokenizer).to_str())
    large["added_tokens"].append({**large["added_tokens"][0], "id": 65_600, "content": "<|last|>"})
    large["model"]["vocab"]["<|last|>"] = 65_600
    data = json.dumps(large).encode()
    (shard,) = run_shards(tokenize_shard, documents(["a"]), tokenizer=make_file("large.json", data), eos="<|last|>")
    assert choose_encoder(data).fast is not None  # that ids are left out does not make it slow
    assert open_array(shard.file(TOKENS)).dtype == np.uint32
    assert split_documents(shard)[0][-1] == 65_600
    meta = total([shard.value], tokenizer_json=data, eos="<|last|>")
    assert (meta["vocab_size"], meta["dtype"], meta["eos_id"], meta["tokens"]) == (65_601, "uint32", 65_600, 2)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> object:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(CORPUS * 3, trainer)
    return choose_encoder(trained.to_str().encode())


@given(texts=st.lists(st.text() | st.text(f"ab 1\n{EOS}"), max_size=5))
def test_encoders_agree_on_any_text(encoders: object, texts: list[str]) -> None:
    assert encoders.fast.encode(texts).equals(encoders.truth.encode(texts))
