"""A checkpoint artifact as a model and its tokenizer, in memory, ready to score and to continue text."""

import functools
import itertools
import json
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from marin import fs
from marin.base.errors import DataError
from marin.data.tokenizer import load_tokenizer
from marin.graph.files import Contents, FileRef
from marin.model.decoder import LanguageModel
from marin.model.hub import from_hugging_face_config, load_model
from marin.model.weights import read_tensors

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"


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
    chat_template: str | None = None
    """The Jinja template that came with the tokenizer."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.output_weight.device

    @property
    def leading_ids(self) -> tuple[int, ...]:
        """What stands before a text: what the tokenizer itself puts there.

        Where it puts nothing, models of `Train`, which have no `bos_token_id`, get the end-of-text token that each of
        their documents followed; models from elsewhere get nothing, as in transformers.
        """
        encoding = self.tokenizer.encode("a")
        added = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        leading = tuple(token for token, _ in itertools.takewhile(lambda pair: pair[1], added))
        return leading or (() if self._begins is not None else (self.eos_id,))

    @property
    def start_ids(self) -> tuple[int, ...]:
        """What a text follows that must follow something: `leading_ids`, else `bos_token_id`."""
        return self.leading_ids or (self.eos_id if self._begins is None else self._begins,)

    @property
    def _begins(self) -> int | None:
        begins = self.config.get("bos_token_id")
        return begins if isinstance(begins, int) else None

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text: all of `eos_token_id`."""
        ends = self.config.get("eos_token_id")
        return frozenset(ends) if isinstance(ends, list) else frozenset((self.eos_id,))

    @property
    def conditioning(self) -> str:
        """What a text follows, in words, for the scores."""
        names = " ".join(repr(self.tokenizer.id_to_token(token)) for token in self.start_ids)
        if not self.leading_ids:
            return f"no token is put before a text; an empty one is {names}"
        return f"each text follows {names} once; no token is added after it"

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
    ends = config.get("eos_token_id")
    eos_id = ends[0] if isinstance(ends, list) and ends else ends
    if not isinstance(eos_id, int):
        raise DataError(
            "the checkpoint names no end-of-text token",
            where=contents.file(CONFIG).url,
            hint="train on data whose tokenizer has one, or set eos_token_id in config.json",
        )
    decoder = from_hugging_face_config(config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(decoder, tensors, device)
    return LoadedCheckpoint(
        model, config, tokenizer, tokenizer_json, eos_id, decoder.context or 2048, chat_template(contents)
    )


def chat_template(contents: Contents) -> str | None:
    """Return the checkpoint's chat template, if it has one."""
    if all(file.path != CHAT_TEMPLATE for file in contents.files):
        return None
    return contents.reader.read(contents.file(CHAT_TEMPLATE)).decode()


@functools.lru_cache(maxsize=1)
def opened_checkpoint(weights: FileRef, config: FileRef, tokenizer: FileRef) -> LoadedCheckpoint:
    """Return the checkpoint of these files; the last one stays in this process, for the next shard."""
    return load_checkpoint(Contents(fs.FileReader(), (weights, config, tokenizer)))


def checkpoint_files(contents: Contents) -> dict[str, FileRef]:
    """Return what `opened_checkpoint` takes, by name: small values that can be sent to a map.

    Lets go of the checkpoint that this process has open, so that a step reads, and checks, its files itself.
    """
    opened_checkpoint.cache_clear()
    return {
        "weights": contents.file(WEIGHTS),
        "config": contents.file(CONFIG),
        "tokenizer": contents.file(TOKENIZER),
    }
