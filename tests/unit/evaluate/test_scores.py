"""Scores: each token once, whatever the batch; equal to a direct computation; bits per byte of the original text."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

import marin
from marin import Checkpoint, Decoder, Evaluate, Records, Step, fs
from marin.base.errors import ConfigurationError, DataError
from marin.evaluate import loss
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.compression import compress_texts
from marin.evaluate.loss import DocumentLosses, by_source, score_documents, summarise
from marin.evaluate.windows import windows
from marin.model.hub import to_hugging_face_config
from marin.model.init import build

TEXTS = [
    "def f(x):\n    return x + 1\n",
    "",
    "a",
    "naïve café 東京\n" * 9,
    "<|endoftext|> is text here",
    "x = 1\n" * 40,
]
CONTEXT = 16


@pytest.fixture(scope="module")
def checkpoint() -> LoadedCheckpoint:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.encode_special_tokens = True
    decoder = Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=300, context=CONTEXT, init_std=0.3)
    torch.manual_seed(0)
    model = build(decoder, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    config = dict(to_hugging_face_config(decoder, eos_id=0))
    return LoadedCheckpoint(model.eval(), config, tokenizer, tokenizer.to_str().encode(), 0, CONTEXT)


def scored(checkpoint: LoadedCheckpoint, stride: int = CONTEXT // 2, batch_tokens: int = 64) -> DocumentLosses:
    return score_documents(checkpoint, TEXTS, stride=stride, batch_tokens=batch_tokens)


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_windows_score_every_token_once_within_the_context(num_tokens: int, context: int, data: st.DataObject):
    stride = data.draw(st.integers(1, context))
    seen = []
    for start, end, first_scored in windows(num_tokens, context=context, stride=stride):
        assert start <= first_scored < end <= start + context
        seen += range(first_scored, end)
    assert seen == list(range(num_tokens))


@pytest.mark.parametrize("stride", [0, 17])
def test_windows_that_leave_gaps_are_refused(stride: int):
    with pytest.raises(ConfigurationError, match="does not cover"):
        list(windows(100, context=16, stride=stride))


@torch.no_grad()
def test_score_equals_a_direct_computation(checkpoint: LoadedCheckpoint):
    expected = []
    for text in TEXTS:
        ids = [0, *checkpoint.encode(text)]
        total = 0.0
        for position in range(1, len(ids)):
            # The window that scores a position begins at a multiple of the stride and sees all before it.
            begin = 0 if position <= CONTEXT else math.ceil((position - CONTEXT) / 8) * 8
            logits = checkpoint.model(torch.tensor([ids[begin:position]]))[0, -1].double()
            total -= float(torch.log_softmax(logits, dim=-1)[ids[position]])
        expected.append(total)
    np.testing.assert_allclose(scored(checkpoint).nats, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 33, 10_000])
def test_score_batch_size_changes_nothing_beyond_rounding(checkpoint: LoadedCheckpoint, batch_tokens: int):
    np.testing.assert_allclose(
        scored(checkpoint, batch_tokens=batch_tokens).nats, scored(checkpoint).nats, rtol=1e-5, atol=1e-5
    )


def test_score_counts_bytes_of_the_text_and_tokens_of_the_document(checkpoint: LoadedCheckpoint):
    losses = scored(checkpoint)
    assert list(losses.bytes) == [len(text.encode()) for text in TEXTS]
    assert list(losses.tokens) == [len(checkpoint.encode(text)) for text in TEXTS]


def test_summary_of_known_losses():
    losses = DocumentLosses(np.array([2.0, 6.0]) * math.log(2), np.array([2, 2]), np.array([4, 4]))
    metrics, details = summarise(losses)
    assert metrics["bits_per_byte"] == pytest.approx(1.0)
    assert metrics["loss"] == pytest.approx(2 * math.log(2))
    assert metrics["perplexity"] == pytest.approx(4.0)
    low, high = details["bits_per_byte_interval"]  # type: ignore[misc]
    assert 0.5 <= low <= 1.0 <= high <= 1.5  # type: ignore[operator]


@pytest.mark.parametrize(("nats", "message"), [([math.nan], "not finite"), ([], "no text")])
def test_summary_without_a_number_is_an_error(nats: list[float], message: str):
    ones = np.ones(len(nats), dtype=np.int64)
    with pytest.raises(DataError, match=message):
        summarise(DocumentLosses(np.array(nats), ones, ones))


def test_compression_of_known_text():
    metrics, _ = compress_texts(["a" * 10_000, "b" * 10_000])
    assert 0 < metrics["gzip_bits_per_byte"] < 0.1
    assert 0 < metrics["xz_bits_per_byte"] < 0.1
    assert metrics["bytes"] == 20_000
    with pytest.raises(DataError):
        compress_texts([])


def test_scores_of_sources_are_those_of_their_documents_alone():
    losses = DocumentLosses(np.array([2.0, 6.0, 5.0, 1.0]), np.array([2, 2, 3, 1]), np.array([4, 4, 9, 2]))
    details = by_source(losses, ["a", "b", "a", "c"])
    assert details["sources"] == 3
    scores = details["by_source"]
    alone, alone_details = summarise(DocumentLosses(losses.nats[[0, 2]], losses.tokens[[0, 2]], losses.bytes[[0, 2]]))
    assert scores["a"] == {**alone, **alone_details}  # type: ignore[index,call-overload]
    assert scores["b"]["bits_per_byte_interval"] is None  # type: ignore[index,call-overload]


def test_interval_is_the_same_however_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch):
    noise = np.random.default_rng(1)
    losses = DocumentLosses(noise.random(50), noise.integers(1, 9, 50), noise.integers(1, 99, 50))
    whole = summarise(losses)
    monkeypatch.setattr(loss, "_DRAWN_AT_ONCE", 350)
    assert summarise(losses) == whole


def test_evaluate_step_says_what_a_text_follows_and_keeps_each_document(tmp_path: Path, trained: Step[Checkpoint]):
    step = Evaluate(checkpoint=trained, documents=Records(texts=["x = 1\n", "def f(x):"]))
    scores = marin.run(step, store=tmp_path, backend="inline")
    record = json.loads(scores.contents.reader.read(scores.file("scores.json")))
    assert record["conditioning"] == "each document follows the end-of-text token; no end-of-text token is scored"
    assert list(record["by_source"]) == ["records"]
    table = pq.read_table(scores.file("documents.parquet").url).to_pydict()
    assert table["id"] == ["0", "1"]
    assert sum(table["nats"]) / sum(table["tokens"]) == pytest.approx(scores.metrics["loss"])


def test_evaluate_step_in_many_ranges_keeps_every_document_once(
    tmp_path: Path, trained: Step[Checkpoint], monkeypatch: pytest.MonkeyPatch
):
    documents = Records(texts=[f"x = {number}\n" * (number % 4 + 1) for number in range(30)])
    step = Evaluate(checkpoint=trained, documents=documents)
    whole = marin.run(step, store=tmp_path / "one", backend="inline")
    monkeypatch.setattr(loss, "RANGE_DOCUMENTS", 8)
    monkeypatch.setattr(loss, "RANGE_BYTES", 60)
    cut = marin.run(step, store=tmp_path / "two", backend="inline")
    assert cut.metrics == pytest.approx(whole.metrics, rel=1e-6)
    tables = [pq.read_table(scores.file("documents.parquet").url).to_pydict() for scores in (whole, cut)]
    assert tables[0]["id"] == tables[1]["id"] == [str(number) for number in range(30)]
    np.testing.assert_allclose(tables[0]["nats"], tables[1]["nats"], rtol=1e-5)


def test_scores_of_no_range_are_an_error(tmp_path: Path):
    with pytest.raises(DataError, match="no text to score"):
        loss.collect(fs.FolderOutput(str(tmp_path)), [])
