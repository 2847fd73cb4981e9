"""A checkpoint as one GGUF file, for llama.cpp and what is built on it (needs the extra `gguf`).

Invariant: the file is read back and compared before it leaves the step. Norms and biases are fp32 in every type.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marin.base.errors import DataError, InputError
from marin.base.json import Json
from marin.evaluate.checkpoint import LoadedCheckpoint, load_checkpoint
from marin.export.card import model_card
from marin.export.gguf_order import names_in_gguf, to_gguf
from marin.export.gguf_parity import check
from marin.export.gguf_tokenizer import Vocabulary, vocabulary
from marin.export.peer import absent, gguf
from marin.graph.files import Contents, Output
from marin.model.config import Decoder

FILE = "model.gguf"
_TYPES = {
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
    "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
}


def export_gguf(contents: Contents, output: Output, *, dtype: str, license: str | None) -> dict[str, Json]:
    """Write `model.gguf` and a model card, read the file back, and return the parity report.

    Raises InputError where the library is missing, DataError for what GGUF cannot say of this model, ExportError when
    what is read back differs.
    """
    if absent(["gguf"]):
        raise InputError("writing GGUF needs the package `gguf`", where="Export", hint="pip install 'marin[gguf]'")
    checkpoint = load_checkpoint(contents)
    decoder = checkpoint.model.config
    if decoder.rope_scaling is not None:
        raise DataError(
            "a stretched RoPE is not written to GGUF",
            where="config.json, rope_scaling",
            hint="export safetensors, and convert that folder with llama.cpp's own script",
        )
    words = vocabulary(checkpoint.tokenizer_json, decoder.vocabulary)
    with tempfile.TemporaryDirectory(prefix="marin-gguf-") as folder:
        path = Path(folder, FILE)
        write_gguf(checkpoint, words, path, dtype=dtype, license=license)
        report = check(path, checkpoint, words, dtype=dtype)
        with path.open("rb") as source, output.open(FILE) as target:
            shutil.copyfileobj(source, target, 1 << 22)
    parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    architecture = checkpoint.config["architectures"][0]
    card = model_card(decoder, architecture, parameters, dtype=dtype, license=license, gguf=FILE)
    output.write("README.md", card.encode())
    return report


def write_gguf(checkpoint: LoadedCheckpoint, words: Vocabulary, path: Path, *, dtype: str, license: str | None) -> None:
    """Write the file; equal checkpoints give equal bytes."""
    decoder = checkpoint.model.config
    kind, file_type = _TYPES[dtype]
    writer = gguf.GGUFWriter(path, checkpoint.config["model_type"])
    writer.add_type("model")
    writer.add_file_type(gguf.LlamaFileType[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if license:
        writer.add_license(license)
    _add_shape(writer, decoder)
    _add_tokenizer(writer, checkpoint, words)
    names = names_in_gguf(checkpoint)
    for name, tensor in checkpoint.model.state_dict().items():
        values = to_gguf(name, tensor, checkpoint)
        stored = gguf.GGMLQuantizationType[_stored_as(values, kind)]
        writer.add_tensor(names[name], gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored_as(values: NDArray[np.float32], kind: str) -> str:
    if values.ndim < 2:
        return "F32"
    block = 32 if kind == "Q8_0" else 1
    return kind if values.shape[-1] % block == 0 else "F16"


def _add_shape(writer: Any, decoder: Decoder) -> None:  # Any: the library's writer
    writer.add_block_count(decoder.layers)
    writer.add_context_length(decoder.context or 0)
    writer.add_embedding_length(decoder.width)
    writer.add_feed_forward_length(decoder.mlp_size)
    writer.add_head_count(decoder.heads)
    writer.add_vocab_size(decoder.vocabulary)
    if decoder.family == "gpt2":
        writer.add_layer_norm_eps(decoder.norm_eps)
        return
    writer.add_head_count_kv(decoder.num_kv_heads)
    writer.add_key_length(decoder.head_size)
    writer.add_value_length(decoder.head_size)
    writer.add_rope_dimension_count(decoder.head_size)
    writer.add_rope_freq_base(decoder.rope_theta)
    writer.add_layer_norm_rms_eps(decoder.norm_eps)


def _add_tokenizer(writer: Any, checkpoint: LoadedCheckpoint, words: Vocabulary) -> None:  # Any: the library's writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.cut)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.kinds)
    writer.add_token_merges(words.merges)
    writer.add_bos_token_id(checkpoint.start_ids[-1])
    writer.add_eos_token_id(checkpoint.eos_id)
    if isinstance(pad := checkpoint.config.get("pad_token_id"), int):
        writer.add_pad_token_id(pad)
    writer.add_add_bos_token(bool(checkpoint.leading_ids))
    writer.add_add_space_prefix(False)
    if checkpoint.chat_template is not None:
        writer.add_chat_template(checkpoint.chat_template)
