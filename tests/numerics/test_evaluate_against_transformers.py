"""Likelihoods, losses and greedy completions beside transformers' own, on the same weights."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from marin import Decoder
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.choices import encode_items, score_items
from marin.evaluate.complete import Prompt, Sampling, complete_prompts
from marin.evaluate.items import Item
from marin.evaluate.loss import score_documents
from marin.evaluate.scorer import ModelPredictor
from marin.model.hub import to_hugging_face_config
from marin.model.init import build

SHAPES = {
    "llama": Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=257, context=64),
    "qwen3": Decoder(layers=2, width=32, heads=4, kv_heads=1, vocab_size=257, context=64, qk_norm=True, tied=False),
    "gpt2": Decoder(family="gpt2", layers=2, width=32, heads=4, vocab_size=257, context=64),
}
TEXTS = ["a", "several words of text", "0123456789" * 2, "", "naïve"]


def bytes_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are bytes, the end-of-text token behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


@torch.no_grad()
def both(shape: str) -> tuple[LoadedCheckpoint, Any]:
    """Return a random model as a checkpoint of ours and as a model of transformers."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = build(SHAPES[shape], torch.device("cpu")).eval()
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    record = to_hugging_face_config(SHAPES[shape], eos_id=256)
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**record))
    theirs.load_state_dict(model.state_dict(), strict=False)
    theirs.tie_weights()
    tokenizer = bytes_tokenizer()
    return LoadedCheckpoint(model, dict(record), tokenizer, tokenizer.to_str().encode(), 256, 64), theirs.eval()


@torch.no_grad()
def their_likelihoods(theirs: Any, ids: list[int]) -> np.ndarray:
    """Return the log-likelihood of each token but the first."""
    logits = theirs(torch.tensor([ids[:-1]])).logits[0].double()
    return torch.log_softmax(logits, dim=1).gather(1, torch.tensor(ids[1:]).unsqueeze(1))[:, 0].numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_likelihoods_of_choices_equal_those_of_transformers(shape: str) -> None:
    checkpoint, theirs = both(shape)
    shots = "Q: red? A: Mars\n\n"
    items = [Item(str(n), f"{shots}Q: {n}? A:", ("Mars", "Venus", "the moon", "東")[: 2 + n % 3], 0) for n in range(5)]
    requests = encode_items(checkpoint, items, " ")
    rows = score_items(ModelPredictor(checkpoint.model), items, requests, context=64, batch_tokens=16_384)
    for item, row in zip(items, rows, strict=True):
        expected = []
        for answer in item.answers:
            ids = [256, *checkpoint.encode(f"{item.prompt} {answer}")]
            expected.append(their_likelihoods(theirs, ids)[-len(f" {answer}".encode()) :].sum())
        assert row["log_likelihoods"] == pytest.approx(expected, abs=1e-4)
        assert row["chosen"] == int(np.argmax(expected))


@pytest.mark.parametrize("shape", SHAPES)
def test_losses_of_documents_equal_those_of_transformers(shape: str) -> None:
    checkpoint, theirs = both(shape)
    losses = score_documents(checkpoint, TEXTS, stride=32, batch_tokens=100)
    expected = [-their_likelihoods(theirs, [256, *checkpoint.encode(text)]).sum() if text else 0.0 for text in TEXTS]
    assert list(losses.nats) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_greedy_completions_equal_those_of_transformers(shape: str) -> None:
    checkpoint, theirs = both(shape)
    tokenizer = checkpoint.tokenizer
    prompts = [Prompt(str(number), text) for number, text in enumerate(TEXTS)]
    rows = complete_prompts(checkpoint, prompts, Sampling(30), batch_tokens=150)
    for text, row in zip(TEXTS, rows, strict=True):
        ids = torch.tensor([[256, *checkpoint.encode(text)]])
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=30,
            do_sample=False,
            eos_token_id=256,
            pad_token_id=0,
        )
        written = out[0, ids.shape[1] :].tolist()
        kept = written[: written.index(256)] if 256 in written else written
        assert row["completion"] == tokenizer.decode(kept)
        assert row["tokens"] == len(kept)
