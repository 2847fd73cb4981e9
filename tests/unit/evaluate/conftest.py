"""A tiny random model with its tokenizer: in memory, and as a step whose checkpoint lies in a store."""

import json
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from marin import Checkpoint, Context, Decoder, Step
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.model.decoder import LanguageModel
from marin.model.hub import to_hugging_face_config
from marin.model.init import build
from marin.model.weights import write_tensors

TEXTS = [
    "def f(x):\n    return x + 1\n",
    "naïve café 東京\n" * 9,
    "x = 1\n" * 40,
    "Question: which planet is red? Answer: Mars\n" * 3,
]
LLAMA = Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=300, context=96)


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.encode_special_tokens = True
    return made


def random_model(decoder: Decoder) -> LanguageModel:
    """Return a model whose weights are large enough for predictions to differ."""
    noise = torch.Generator().manual_seed(0)
    model = build(decoder, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=noise)
    return model.eval()


def loaded(decoder: Decoder, **config: Any) -> LoadedCheckpoint:
    text = tokenizer()
    record = {**to_hugging_face_config(decoder, eos_id=0), **config}
    return LoadedCheckpoint(random_model(decoder), record, text, text.to_str().encode(), 0, decoder.context or 96)


class RandomCheckpoint(Step[Checkpoint]):
    """The tiny model as an artifact; `broken` puts a NaN into it."""

    version = 1

    broken: bool = False

    def run(self, ctx: Context) -> Checkpoint:
        model = random_model(LLAMA)
        if self.broken:
            with torch.no_grad():
                model.output_weight[7] = torch.nan
        with ctx.output.open("model.safetensors") as file:
            write_tensors(file, model.state_dict())
        ctx.output.write("config.json", json.dumps(to_hugging_face_config(LLAMA, eos_id=0)).encode())
        ctx.output.write("tokenizer.json", tokenizer().to_str().encode())
        return Checkpoint.write(ctx.output)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint() -> LoadedCheckpoint:
    return loaded(LLAMA)


@pytest.fixture(scope="session")
def make_checkpoint():
    """Return a checkpoint of a decoder, with fields of its config.json changed."""
    return loaded


@pytest.fixture(scope="session")
def trained() -> Step[Checkpoint]:
    return RandomCheckpoint()


@pytest.fixture(scope="session")
def diverged() -> Step[Checkpoint]:
    return RandomCheckpoint(broken=True)
