"""Where training starts when it continues from a checkpoint: weights, and for a branch the training's own state.

Invariant: a checkpoint is taken over whole or refused with the field that differs, before a device is used. It reads
what `marin.train.record` wrote, or any checkpoint of a model that marin can build.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from marin.base.errors import CheckpointError, ConfigurationError
from marin.graph.artifact import Checkpoint
from marin.model.config import Decoder
from marin.model.hub import from_hugging_face_config
from marin.model.weights import read_tensors

STATE = "training-state.safetensors"
RAW = "weights."
"""Prefix of the weights themselves in `STATE`, where the checkpoint's are an average."""


class Carried(NamedTuple):
    """What a branch takes over beside the weights."""

    optimizer: dict[str, Tensor]
    updates: int
    """Optimiser steps so far."""
    position: int
    """Sequences of the stream that were consumed."""
    order: Mapping[str, Any]  # Any: JSON
    """What the order of that stream depends on."""


class Start(NamedTuple):
    """A checkpoint to start from."""

    digest: str
    weights: dict[str, Tensor]
    carried: Carried | None = None
    config: Mapping[str, Any] = {}  # Any: JSON
    """The checkpoint's `config.json`."""

    def position(self, order: Mapping[str, object]) -> int:
        """Return the stream position at which to begin: where the checkpoint stopped if its data are the same."""
        if self.carried is None:
            return 0
        same = all(self.carried.order.get(name) == order[name] for name in ("dataset", "seed", "order_version"))
        return self.carried.position if same else 0


def read_decoder(checkpoint: Checkpoint) -> Decoder:
    """Return the shape of a checkpoint's model."""
    return from_hugging_face_config(config_of(checkpoint))


def end_ids(named: Any) -> list[int]:  # Any: JSON
    """Return the ids that `eos_token_id` names: none, one, or several."""
    return [] if named is None else list(named) if isinstance(named, list) else [named]


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:  # Any: JSON
    """Return a checkpoint's `config.json`."""
    record: dict[str, Any] = json.loads(checkpoint.contents.reader.read(checkpoint.file("config.json")))
    return record


def read_start(checkpoint: Checkpoint, *, carry_training: bool) -> Start:
    """Return a checkpoint's tensors; raises CheckpointError if it holds no state that could be carried on."""
    reader = checkpoint.contents.reader
    file = checkpoint.file("model.safetensors")
    weights = read_tensors(reader.read(file), where=file.url)
    if not carry_training:
        return Start(checkpoint.digest, weights, config=config_of(checkpoint))
    files = {each.path: each for each in checkpoint.contents.files}
    if STATE not in files:
        raise CheckpointError(
            "the initial checkpoint holds no optimiser state",
            where=file.url,
            hint="train it with keep_state=True, or start from its weights: carry='weights'",
        )
    tensors = read_tensors(reader.read(files[STATE]), where=files[STATE].url)
    record = json.loads(reader.read(checkpoint.file("training.json")))
    optimizer = {name: tensor for name, tensor in tensors.items() if not name.startswith(RAW)}
    weights |= {name.removeprefix(RAW): tensor for name, tensor in tensors.items() if name.startswith(RAW)}
    carried = Carried(optimizer, record["state"]["updates"], record["state"]["position"], record["order"])
    return Start(checkpoint.digest, weights, carried, config_of(checkpoint))


def matched(model: Decoder, checkpoint: Decoder, *, context: int, step: str = "Train") -> Decoder:
    """Return the model with its vocabulary from the checkpoint; raises ConfigurationError where the two differ.

    Initial spread does not count, and the context may be shorter than the checkpoint's. `step` is whose fields the
    errors name.
    """
    model = model.model_copy(update={"vocab_size": model.vocab_size or checkpoint.vocab_size})
    before, now = _computed(checkpoint), _computed(model)
    for name, value in now.items():
        if value != before[name]:
            raise ConfigurationError(
                f"the initial checkpoint has `{name}` {before[name]!r}, the model to train has {value!r}",
                where=f"{step}.model.{name}",
                hint=f"give the checkpoint's own shape: {name}={before[name]!r}",
            )
    limit = checkpoint.context or context
    if context > limit or (model.family == "gpt2" and context != limit):
        raise ConfigurationError(
            f"the data are packed to sequences of {context} tokens, the initial checkpoint has positions for {limit}",
            where=f"{step}.init",
            hint=f"pack the data again with context={limit}",
        )
    return model


def _computed(model: Decoder) -> dict[str, object]:
    """Return what decides a model's parameters and what it computes from them, defaults spelled out."""
    kept = model.model_dump(exclude={"init_std", "context"})
    resolved = {"kv_heads": model.num_kv_heads, "head_width": model.head_size, "mlp_width": model.mlp_size}
    return {**kept, **resolved}
