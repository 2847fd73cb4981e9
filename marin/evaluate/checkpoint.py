"""A checkpoint artifact as a model and its tokenizer, in memory, ready to score and to continue text."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from marin.base.errors import DataError
from marin.data.tokenizer import load_tokenizer
from marin.graph.files import Contents
from marin.model.decoder import LanguageModel
from marin.model.hub import from_hugging_face_config, load_model
from marin.model.weights import read_tensors

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A model in fp32 on one device, and what belongs to it."""

    model: LanguageModel
    config: dict[str, Any]  # Any: JSON
    """Hugging Face's `config.json`."""
    tokenizer: Tokenizer
    tokenizer_json: bytes
    eos_id: int
    context: int
    """Most tokens that the model sees at once."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.output_weight.device

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; control strings in it are text, and nothing is added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def load_checkpoint(contents: Contents) -> LoadedCheckpoint:
    """Return the checkpoint's model in fp32, on a GPU if there is one; DataError if files do not fit together."""
    config = json.loads(contents.reader.read(contents.file(CONFIG)))
    tensors = read_tensors(contents.reader.read(contents.file(WEIGHTS)), where=contents.file(WEIGHTS).url)
    tokenizer_json = contents.reader.read(contents.file(TOKENIZER))
    tokenizer = load_tokenizer(tokenizer_json)
    tokenizer.encode_special_tokens = True
    eos_id = config.get("eos_token_id")
    if not isinstance(eos_id, int):
        raise DataError(
            "the checkpoint names no end-of-text token",
            where=contents.file(CONFIG).url,
            hint="train on data whose tokenizer has one, or set eos_token_id in config.json",
        )
    decoder = from_hugging_face_config(config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(decoder, tensors, device)
    return LoadedCheckpoint(model, config, tokenizer, tokenizer_json, eos_id, decoder.context or 2048)
