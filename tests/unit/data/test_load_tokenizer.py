"""LoadTokenizer: published files become `tokenizer.json` with the same ids, or are refused by name."""

import base64
import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import marin
from marin.base.errors import DataError, MarinError
from marin.data.encode import choose_encoder
from marin.data.tiktoken_ranks import encode_word, read_ranks
from marin.data.tokenizer import WORDS, train_tokenizer
from marin.graph.files import Shard

EOS = "<|endoftext|>"
CORPUS = ["def add(left, right):\n    return left + right\n" * 3, "the cat and the hat and the bat " * 5, "123 456 été"]

Documents = Callable[..., list[Shard]]


@pytest.fixture
def trained(documents: Documents) -> bytes:
    return train_tokenizer(documents(CORPUS), vocab_size=290, special_tokens=(EOS, "<|im_start|>"))


@pytest.fixture
def hub(tmp_path: Path, trained: bytes) -> Path:
    """A folder as on the Hugging Face hub, weights beside."""
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(trained)
    config = {"eos_token": {"content": EOS, "lstrip": False}, "bos_token": "<|im_start|>", "chat_template": "{{ 1 }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def load(url: Path, store: Path, **options: object) -> marin.Tokenizer:
    artifact = marin.run(marin.LoadTokenizer(url=str(url), **options), store=store, backend="inline")
    assert isinstance(artifact, marin.Tokenizer)
    return artifact


def failure(url: Path, store: Path, **options: object) -> str:
    with pytest.raises(MarinError) as caught:
        load(url, store, **options)
    return str(caught.value)


def test_load_tokenizer_of_a_folder_is_the_file_with_its_ends_and_template(
    hub: Path, trained: bytes, tmp_path: Path
) -> None:
    artifact = load(hub, tmp_path / "store")
    assert artifact.read() == trained
    assert (artifact.meta["eos"], artifact.meta["bos"]) == (EOS, "<|im_start|>")
    assert artifact.contents.reader.read(artifact.file("chat_template.jinja")) == b"{{ 1 }}"


def test_load_tokenizer_when_the_weights_change_is_cached_and_when_the_file_changes_runs(
    hub: Path, tmp_path: Path
) -> None:
    step = marin.LoadTokenizer(url=str(hub))
    marin.run(step, store=tmp_path / "store", backend="inline")
    (hub / "model.safetensors").write_bytes(b"other weights")
    (hub / "optimizer.pt").write_bytes(b"moments")
    assert [each.state for each in marin.plan(step, store=tmp_path / "store").steps] == ["cached"]
    (hub / "chat_template.jinja").write_text("{{ 2 }}")
    assert [each.state for each in marin.plan(step, store=tmp_path / "store").steps] != ["cached"]


def test_load_tokenizer_then_tokenize_puts_its_bos_once_before_each_document(hub: Path, tmp_path: Path) -> None:
    tokenize = marin.Tokenize(
        documents=marin.Records(texts=["a", "<|im_start|>b"]),
        tokenizer=marin.LoadTokenizer(url=str(hub)),
        bos="<|im_start|>",
    )
    tokens = marin.run(tokenize, store=tmp_path / "store", backend="inline")
    assert tokens.meta["notes"]["control_strings"] == 1
    assert tokens.meta["sources"] == {"records": {"documents": 2, "tokens": tokens.meta["tokens"]}}
    refused = tokenize.model_copy(update={"special_in_text": "error"})
    with pytest.raises(MarinError, match=r"control string '<\|im_start\|>'"):
        marin.run(refused, store=tmp_path / "store", backend="inline")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("holes", lambda record: record["model"]["vocab"].update(far=5000)),
        ("duplicate_id", lambda record: record["model"]["vocab"].update(far=7)),
        ("duplicate_token", lambda record: record["added_tokens"][0].update(id=9)),
        ("id_out_of_range", lambda record: record["model"]["vocab"].update(far=2**31)),
        ("renumbered", lambda record: record["added_tokens"].append(FAR)),
        ("id_beyond_vocabulary", lambda record: record.update(post_processor=TEMPLATE_OF_999)),
        ("dropout", lambda record: record["model"].update(dropout=0.5)),
    ],
)
def test_load_tokenizer_with_wrong_ids_is_refused_by_name(
    hub: Path, tmp_path: Path, name: str, damage: Callable[[dict], None]
) -> None:
    record = json.loads((hub / "tokenizer.json").read_text())
    damage(record)
    (hub / "tokenizer.json").write_text(json.dumps(record))
    assert f"({name})" in failure(hub, tmp_path / "store", holes="fail" if name == "holes" else "keep")


def test_load_tokenizer_whose_configuration_is_no_object_is_refused(hub: Path, tmp_path: Path) -> None:
    (hub / "tokenizer_config.json").write_text("[1]")
    assert "`tokenizer_config.json` holds no JSON object" in failure(hub, tmp_path / "store")


FAR = {
    "id": 5000,
    "content": "<|far|>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
TEMPLATE_OF_999 = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": EOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {EOS: {"id": EOS, "ids": [999], "tokens": [EOS]}},
}


def test_load_tokenizer_with_a_token_that_stands_twice_is_refused_by_name(hub: Path, tmp_path: Path) -> None:
    text = (hub / "tokenizer.json").read_text().replace('"!": ', '"!":', 1)
    assert '"!":' in text
    (hub / "tokenizer.json").write_text(text.replace('"!":', '"!": 289, "!":', 1))
    assert "(duplicate_token)" in failure(hub, tmp_path / "store")


def test_load_tokenizer_with_holes_kept_has_a_row_for_each(hub: Path, tmp_path: Path) -> None:
    record = json.loads((hub / "tokenizer.json").read_text())
    record["model"]["vocab"]["far"] = 70_000
    (hub / "tokenizer.json").write_text(json.dumps(record))
    assert load(hub, tmp_path / "store", holes="keep").meta["vocab_size"] == 70_001


def test_load_tokenizer_with_two_thousand_million_holes_encodes_by_tokenizers(hub: Path, tmp_path: Path) -> None:
    record = json.loads((hub / "tokenizer.json").read_text())
    record["model"]["vocab"]["far"] = 2**31 - 1
    data = json.dumps(record).encode()
    (hub / "tokenizer.json").write_bytes(data)
    assert load(hub, tmp_path / "store", holes="keep").meta["vocab_size"] == 2**31
    choice = choose_encoder(data)  # filling the holes took 100 GB, and loading a million of them minutes
    assert choice.fast is None
    assert choice.reason.startswith("fastokens cannot load this tokenizer")
    assert choice.truth.encode(["the cat"]).ids.tolist() == choice.tokenizer.encode("the cat").ids


def test_load_tokenizer_without_eos_is_refused_and_with_one_taken(hub: Path, tmp_path: Path) -> None:
    said = failure(hub / "tokenizer.json", tmp_path / "store")
    assert "(missing_eos)" in said
    assert EOS in said
    assert load(hub / "tokenizer.json", tmp_path / "store", eos=EOS).meta["eos"] == EOS
    assert "no token '</s>'" in failure(hub / "tokenizer.json", tmp_path / "store", eos="</s>")


def rank_file(documents: Documents) -> bytes:
    """The ranks of a trained tokenizer: its bytes and merges in order."""
    record = json.loads(train_tokenizer(documents(CORPUS), vocab_size=290, special_tokens=()))
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    tokens = sorted(record["model"]["vocab"], key=record["model"]["vocab"].__getitem__)
    lines = (base64.b64encode(bytes(byte_of[each] for each in token)) for token in tokens)
    return b"".join(b"%s %d\n" % (line, rank) for rank, line in enumerate(lines))


def test_load_tokenizer_of_a_rank_file_gives_the_ids_of_its_algorithm(documents: Documents, tmp_path: Path) -> None:
    data = rank_file(documents)
    (tmp_path / "x.tiktoken").write_bytes(data)
    options = {"pattern": WORDS, "special_tokens": {EOS: 310}, "eos": EOS}
    assert "(holes)" in failure(tmp_path / "x.tiktoken", tmp_path / "store", **options)
    artifact = load(tmp_path / "x.tiktoken", tmp_path / "store", holes="keep", **options)
    tokenizer = Tokenizer.from_buffer(artifact.read())
    ranks = read_ranks(data)
    assert tokenizer.token_to_id(EOS) == 310
    for word in ("the", " returning", "été", " hat\n"):
        assert [
            number
            for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word)
            for number in encode_word(ranks, tokenizer.decoder.decode([piece]).encode())
        ] == tokenizer.encode(word).ids


@given(words=st.lists(st.text("theandr ", min_size=1, max_size=12), min_size=1, max_size=4))
def test_tiktoken_algorithm_of_any_word_joins_to_the_word(words: list[str]) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257, b"an": 258, b"he": 259}
    names = {rank: token for token, rank in ranks.items()}
    for word in words:
        ids = encode_word(ranks, word.encode())
        assert b"".join(names[number] for number in ids) == word.encode()
        assert not any(names[a] + names[b] in ranks for a, b in pairwise(ids))


def test_load_tokenizer_of_a_rank_file_wrongly_described_is_refused(documents: Documents, tmp_path: Path) -> None:
    (tmp_path / "x.tiktoken").write_bytes(rank_file(documents))
    assert "where merges may not cross" in failure(tmp_path / "x.tiktoken", tmp_path / "store", eos=EOS)
    assert "possessive" in failure(tmp_path / "x.tiktoken", tmp_path / "store", eos=EOS, pattern=r"\p{N}{1,3}+")
    taken = {"pattern": WORDS, "special_tokens": {EOS: 5}, "eos": EOS}
    assert "(duplicate_id)" in failure(tmp_path / "x.tiktoken", tmp_path / "store", **taken)


@pytest.mark.parametrize(
    ("line", "name"), [(b"???? 300", "bad_rank_line"), (b"YQ== 300", "duplicate_token"), (b"eHl6 5", "duplicate_id")]
)
def test_read_ranks_of_a_damaged_file_is_refused_by_name(documents: Documents, line: bytes, name: str) -> None:
    with pytest.raises(DataError, match=name):
        read_ranks(rank_file(documents) + line + b"\n")


def sentencepiece_model(kind: str, **options: object) -> bytes:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in CORPUS for _ in range(20)]),
        model_writer=made,
        model_type=kind,
        vocab_size=320,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return made.getvalue()


LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_load_tokenizer_of_a_sentencepiece_model_gives_its_ids(tmp_path: Path, kind: str) -> None:
    data = sentencepiece_model(kind, **LLAMA)
    (tmp_path / "tokenizer.model").write_bytes(data)
    artifact = load(tmp_path / "tokenizer.model", tmp_path / "store")
    assert (artifact.meta["eos"], artifact.meta["bos"]) == ("</s>", "<s>")
    processor, tokenizer = (
        sentencepiece.SentencePieceProcessor(model_proto=data),
        Tokenizer.from_buffer(artifact.read()),
    )
    for text in (*CORPUS, "unseen 漢字 words", "  two  spaces  "):
        assert tokenizer.encode(text, add_special_tokens=False).ids == processor.encode(text)


def test_load_tokenizer_of_other_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\xff\xff\xff")
    assert "(not_sentencepiece)" in failure(tmp_path / "tokenizer.model", tmp_path / "store")


def test_load_tokenizer_with_a_pattern_for_a_file_that_has_one_is_a_configuration_error(
    hub: Path, tmp_path: Path
) -> None:
    assert "has its own" in failure(hub, tmp_path / "store", pattern="x")
