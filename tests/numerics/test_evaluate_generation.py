"""Greedy completions beside transformers' own, on the same weights."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from marin import Decoder
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.complete import Prompt, Sampling, complete_prompts
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


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_greedy_completions_equal_those_of_transformers(shape: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = build(SHAPES[shape], torch.device("cpu")).eval()
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    record = to_hugging_face_config(SHAPES[shape], eos_id=256)
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**record))
    theirs.load_state_dict(model.state_dict(), strict=False)
    theirs.tie_weights()
    theirs.eval()
    tokenizer = bytes_tokenizer()
    checkpoint = LoadedCheckpoint(model, dict(record), tokenizer, tokenizer.to_str().encode(), 256, 64)
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
