"""Scores: each token once, whatever the batch; equal to a direct computation; bits per byte of the original text."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from marin import Decoder
from marin.base.errors import ConfigurationError, DataError
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.complete import complete
from marin.evaluate.compression import compress_texts
from marin.evaluate.loss import DocumentLosses, score_documents, summarise
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
    return score_documents(
        checkpoint, TEXTS, stride=stride, batch_tokens=batch_tokens, progress=lambda done, total, unit: None
    )


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


def test_complete_greedy_is_the_most_likely_and_sampling_follows_the_seed(checkpoint: LoadedCheckpoint):
    greedy = complete(checkpoint, "def f", max_tokens=5, temperature=0, seed=0)
    assert greedy == complete(checkpoint, "def f", max_tokens=5, temperature=0, seed=1)
    assert greedy["tokens"] == 5 or greedy["ended"]
    first = [complete(checkpoint, "x", max_tokens=20, temperature=1.0, seed=seed)["completion"] for seed in range(4)]
    again = [complete(checkpoint, "x", max_tokens=20, temperature=1.0, seed=seed)["completion"] for seed in range(4)]
    assert first == again
    assert len(set(first)) > 1


@given(st.integers(1, 60))
@settings(max_examples=5)
def test_complete_goes_past_the_context(checkpoint: LoadedCheckpoint, max_tokens: int):
    done = complete(checkpoint, "x = 1\n" * 10, max_tokens=max_tokens, temperature=1.0, seed=3)
    assert done["tokens"] <= max_tokens
