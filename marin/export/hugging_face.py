"""A checkpoint as a Hugging Face folder: configuration, safetensors, tokenizer, model card.

Invariant: the folder is written in the attempt, checked by reloading it, and committed whole. Equal checkpoints give
equal bytes: no time, host or library version is in it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from marin.base.json import Json, pretty
from marin.evaluate.checkpoint import CHAT_TEMPLATE, LoadedCheckpoint, load_checkpoint
from marin.export.card import model_card
from marin.export.parity import check
from marin.graph.files import Contents, Output
from marin.model.weights import write_tensors

SHARD_BYTES = 5_000_000_000


def export_checkpoint(
    contents: Contents, output: Output, *, dtype: str, license: str | None, shard_bytes: int = SHARD_BYTES
) -> dict[str, Json]:
    """Write the folder to `output`, reload it, and return the parity report; ExportError when it differs."""
    checkpoint = load_checkpoint(contents)
    write_folder(checkpoint, output, dtype=dtype, license=license, shard_bytes=shard_bytes)
    return check(output.contents(), checkpoint, dtype=dtype)


def write_folder(
    checkpoint: LoadedCheckpoint, output: Output, *, dtype: str, license: str | None, shard_bytes: int
) -> None:
    """Write configuration, weights, tokenizer and card; tied weights are stored once."""
    config = {**checkpoint.config, "torch_dtype": dtype, "dtype": dtype}
    weights = {name: tensor.to(getattr(torch, dtype)) for name, tensor in checkpoint.model.state_dict().items()}
    output.write("config.json", pretty(config).encode())
    output.write("generation_config.json", pretty(_generation_config(checkpoint)).encode())
    output.write("tokenizer.json", checkpoint.tokenizer_json)
    output.write("tokenizer_config.json", pretty(_tokenizer_config(checkpoint)).encode())
    if checkpoint.chat_template is not None:
        output.write(CHAT_TEMPLATE, checkpoint.chat_template.encode())
    _write_weights(weights, output, shard_bytes)
    parameters = sum(tensor.numel() for tensor in weights.values())
    architecture = checkpoint.config["architectures"][0]
    card = model_card(checkpoint.model.config, architecture, parameters, dtype=dtype, license=license)
    output.write("README.md", card.encode())


def _write_weights(weights: Mapping[str, Tensor], output: Output, shard_bytes: int) -> None:
    groups = list(_grouped(weights, shard_bytes))
    if len(groups) == 1:
        with output.open("model.safetensors") as file:
            write_tensors(file, weights)
        return
    places: dict[str, Json] = {}
    for number, names in enumerate(groups, start=1):
        path = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        places |= dict.fromkeys(names, path)
        with output.open(path) as file:
            write_tensors(file, {name: weights[name] for name in names})
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index: Json = {"metadata": {"total_size": total}, "weight_map": places}
    output.write("model.safetensors.index.json", pretty(index).encode())


def _grouped(weights: Mapping[str, Tensor], shard_bytes: int) -> Iterator[list[str]]:
    """Yield the names of each file in order, at most `shard_bytes` a file unless one tensor is larger."""
    names: list[str] = []
    size = 0
    for name, tensor in weights.items():
        tensor_bytes = tensor.numel() * tensor.element_size()
        if names and size + tensor_bytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor_bytes
    yield names


def _generation_config(checkpoint: LoadedCheckpoint) -> dict[str, Json]:
    """Return what ends and begins a text; no length, which would stand beside the caller's own."""
    config = checkpoint.config
    given = {f"{name}_token_id": config.get(f"{name}_token_id") for name in ("bos", "pad")}
    return {"eos_token_id": checkpoint.eos_id, "bos_token_id": given["bos_token_id"]} | {
        name: value for name, value in given.items() if value is not None
    }


def _tokenizer_config(checkpoint: LoadedCheckpoint) -> dict[str, Json]:
    special: list[dict[str, Any]] = [  # Any: JSON
        {"id": token_id, "token": added}
        for token_id, added in sorted(checkpoint.tokenizer.get_added_tokens_decoder().items())
        if added.special
    ]
    decoder: dict[str, Json] = {
        str(each["id"]): {
            "content": each["token"].content,
            "lstrip": each["token"].lstrip,
            "normalized": each["token"].normalized,
            "rstrip": each["token"].rstrip,
            "single_word": each["token"].single_word,
            "special": True,
        }
        for each in special
    }
    named = {
        f"{name}_token": checkpoint.tokenizer.id_to_token(token_id)
        for name in ("bos", "pad")
        if isinstance(token_id := checkpoint.config.get(f"{name}_token_id"), int)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": decoder,
        "eos_token": checkpoint.tokenizer.id_to_token(checkpoint.eos_id),
        **named,
        "model_max_length": checkpoint.context,
        "clean_up_tokenization_spaces": False,
    }
