"""A Hugging Face folder as a checkpoint: checked against its own configuration, then copied bit for bit.

Invariant: nothing of the folder is executed or unpickled. What is written has every tensor of the model under its
name, as the very bytes of the source, so that an export in the same dtype gives them back.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from marin.base.errors import DataError
from marin.base.json import Json, pretty
from marin.evaluate.checkpoint import CHAT_TEMPLATE
from marin.graph.files import FileRef, Output, Reader
from marin.model.config import Decoder
from marin.model.hub import from_hugging_face_config, to_hugging_face_config
from marin.model.init import build
from marin.model.weights import StoredTensor, copy_tensors, stored_tensors

INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Causal masks and frequencies that old checkpoints hold as buffers; no parameters, and computed anew.
_BUFFERS = re.compile(r"(.*\.)?(attn\.(bias|masked_bias)|rotary_emb\.inv_freq)")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class Folder(NamedTuple):
    """The files of a Hugging Face folder, by name."""

    files: Mapping[str, FileRef]
    reader: Reader
    url: str

    def json(self, name: str) -> dict[str, Any]:  # Any: JSON from elsewhere
        """Return a JSON object; an absent file is an empty one. DataError when it cannot be read."""
        if name not in self.files:
            return {}
        try:
            record = json.loads(self.reader.read(self.files[name]))
        except ValueError as error:
            where = self.files[name].url
            raise DataError(f"`{name}` is no JSON: {error}", where=where, hint="download it again") from error
        if not isinstance(record, dict):
            raise DataError(f"`{name}` holds no JSON object", where=self.files[name].url, hint="download it again")
        return record


def import_folder(files: Sequence[FileRef], reader: Reader, output: Output, *, url: str, listed: Iterable[str]) -> Json:
    """Write weights, configuration and tokenizer of a Hugging Face folder to `output`; return a summary.

    `listed`: all names in the folder, to say what is there instead. Raises DataError naming what is missing, surplus
    or of another shape, and what this decoder cannot compute.
    """
    folder = Folder({file.path: file for file in files}, reader, url)
    config = folder.json("config.json")
    if not config:
        raise DataError("there is no config.json", where=url, hint="give a folder as `save_pretrained` writes it")
    decoder = from_hugging_face_config(config)
    paths = _weight_files(folder, listed)
    tokenizer_json = _tokenizer(folder, decoder)
    with contextlib.ExitStack() as stack:
        stored: dict[str, StoredTensor] = {}
        for path in paths:
            file = stack.enter_context(reader.open(folder.files[path]))
            here = stored_tensors(file, folder.files[path].size, where=folder.files[path].url)
            if twice := sorted(here.keys() & stored.keys()):
                raise DataError(f"`{twice[0]}` is in two files", where=folder.files[path].url, hint="download it again")
            stored |= here
        _check_index(folder, stored)
        tensors = _model_tensors(stored, decoder, url)
        with output.open("model.safetensors") as target:
            copy_tensors(target, tensors)
    dtype = _dtype(tensors)
    ends = _end_tokens(folder, config, tokenizer_json)
    output.write("config.json", pretty({**to_hugging_face_config(decoder), "torch_dtype": dtype, **ends}).encode())
    output.write("tokenizer.json", tokenizer_json)
    if (template := _chat_template(folder)) is not None:
        output.write(CHAT_TEMPLATE, template.encode())
    parameters = sum(math.prod(tensor.shape) for tensor in tensors.values())
    return {"architecture": config["model_type"], "parameters": parameters, "dtype": dtype}


def _weight_files(folder: Folder, listed: Iterable[str]) -> list[str]:
    """Return the names of the safetensors files that make up the model."""
    if INDEX in folder.files:
        named = sorted(set(_weight_map(folder).values()))
        if missing := [name for name in named if name not in folder.files]:
            raise DataError(
                f"{len(missing)} of {len(named)} files of weights are missing, such as `{missing[0]}`",
                where=folder.files[INDEX].url,
                hint="download the folder again, whole",
            )
        return named
    found = sorted(name for name in folder.files if name.endswith(".safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise DataError(
            f"there are {len(found)} files of weights and no index that says which belong together",
            where=folder.url,
            hint=f"add `{INDEX}`, or leave one file",
        )
    pickles = sorted(name for name in listed if name.endswith(_PICKLES))
    raise DataError(
        f"the weights are only there as pickles (`{pickles[0]}`), which can run code and are never opened"
        if pickles
        else "there are no safetensors files",
        where=folder.url,
        hint="convert them where you trust them: model.save_pretrained(folder) writes safetensors",
    )


def _weight_map(folder: Folder) -> dict[str, str]:
    weight_map = folder.json(INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise DataError("the index has no `weight_map`", where=folder.files[INDEX].url, hint="download it again")
    return weight_map


def _check_index(folder: Folder, stored: Mapping[str, StoredTensor]) -> None:
    if INDEX not in folder.files:
        return
    named = _weight_map(folder).keys()
    if named != stored.keys():
        absent, surplus = sorted(named - stored.keys()), sorted(stored.keys() - named)
        raise DataError(
            f"index and files disagree: not in the files {absent[:3]}, not in the index {surplus[:3]}",
            where=folder.files[INDEX].url,
            hint="download the folder again, whole",
        )


def _model_tensors(stored: Mapping[str, StoredTensor], decoder: Decoder, url: str) -> dict[str, StoredTensor]:
    """Return the model's tensors by the names of its parameters; DataError unless every one is there, and no other."""
    expected = {name: list(p.shape) for name, p in build(decoder, torch.device("meta")).named_parameters()}
    prefix = "transformer." if decoder.family == "gpt2" else "model."
    given: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if not _BUFFERS.fullmatch(name):
            given[name if name in expected or name == "lm_head.weight" else _prefixed(name, prefix)] = tensor
    if decoder.tied and (copy := given.pop("lm_head.weight", None)) is not None:
        _check_tied(copy, given.get(next(iter(expected))), url)
    missing, extra = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    shapes = sorted(
        f"{name} {given[name].shape} instead of {shape}"
        for name, shape in expected.items()
        if name in given and given[name].shape != shape
    )
    if missing or extra or shapes:
        raise DataError(
            f"the weights are not those that config.json describes: missing {missing[:3]}, extra {extra[:3]}, "
            f"shapes {shapes[:3]}",
            where=url,
            hint="use the weights and the config.json of one checkpoint",
        )
    return given


def _prefixed(name: str, prefix: str) -> str:
    """Return the name inside a model with an output layer; old files hold the body alone."""
    return name if name.startswith(prefix) else prefix + name


def _check_tied(copy: StoredTensor, embedding: StoredTensor | None, url: str) -> None:
    if embedding is not None and (copy.dtype != embedding.dtype or copy.read() != embedding.read()):
        raise DataError(
            "config.json ties the output layer to the embedding, and the files hold another one",
            where=url,
            hint="set tie_word_embeddings to false in config.json if the output layer is meant",
        )


def _dtype(tensors: Mapping[str, StoredTensor]) -> str:
    """Return the dtype that holds every tensor exactly, of those that models are stored in."""
    kinds = {tensor.dtype for tensor in tensors.values()}
    if unknown := kinds - _DTYPES.keys():
        raise DataError(
            f"weights of the dtype {sorted(unknown)[0]} cannot be trained",
            where="model.safetensors",
            hint="store them as float32, bfloat16 or float16",
        )
    return _DTYPES[kinds.pop()] if len(kinds) == 1 else "float32"


def _tokenizer(folder: Folder, decoder: Decoder) -> bytes:
    if "tokenizer.json" not in folder.files:
        raise DataError(
            "there is no tokenizer.json",
            where=folder.url,
            hint="write one: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    data = folder.reader.read(folder.files["tokenizer.json"])
    try:
        vocabulary = Tokenizer.from_buffer(data).get_vocab(with_added_tokens=True)
    except ValueError as error:
        where = folder.files["tokenizer.json"].url
        raise DataError(f"not a tokenizer.json: {error}", where=where, hint="download it again") from error
    largest = max(vocabulary.values(), default=-1)
    if largest >= decoder.vocabulary:
        raise DataError(
            f"the tokenizer has ids up to {largest:,}, the embedding {decoder.vocabulary:,} rows",
            where=folder.files["tokenizer.json"].url,
            hint="use the tokenizer that belongs to these weights",
        )
    return data


def _end_tokens(folder: Folder, config: Mapping[str, Any], tokenizer_json: bytes) -> dict[str, Json]:  # Any: JSON
    """Return `bos_token_id` and one `eos_token_id`: of a list the one that the tokenizer names, or the first.

    And `pad_token_id`, where there is one.
    """
    settings, generation = folder.json("tokenizer_config.json"), folder.json("generation_config.json")
    tokenizer = Tokenizer.from_buffer(tokenizer_json)

    def named(key: str) -> int | None:
        token = settings.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        found: int | None = tokenizer.token_to_id(text) if isinstance(text, str) else None
        return found

    def one(key: str, name: str) -> int | None:
        given = config.get(key, generation.get(key))
        choices = given if isinstance(given, list) else [] if given is None else [given]
        own = named(name)
        return own if own in choices or not choices else choices[0]

    eos_id = one("eos_token_id", "eos_token")
    if eos_id is None:
        raise DataError(
            "neither the model nor its tokenizer names an end-of-text token",
            where=folder.url,
            hint="set eos_token_id in config.json",
        )
    ends: dict[str, Json] = {"bos_token_id": one("bos_token_id", "bos_token"), "eos_token_id": eos_id}
    pad_id = one("pad_token_id", "pad_token")
    return ends if pad_id is None else {**ends, "pad_token_id": pad_id}


def _chat_template(folder: Folder) -> str | None:
    """Return the chat template: a file of its own, else tokenizer_config.json's; of several the one named `default`."""
    if CHAT_TEMPLATE in folder.files:
        return folder.reader.read(folder.files[CHAT_TEMPLATE]).decode()
    found = folder.json("tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}.get("default")
    return found if isinstance(found, str) else None
