"""A GGUF file as a checkpoint, dequantised by transformers (needs `transformers`, `gguf`, `accelerate`).

Weights become fp32, since the blocks of GGUF have no other exact form. What comes out is checked against the
configuration like any other import.
"""

import logging
import tempfile
from pathlib import Path

import torch

from marin.base.errors import DataError, InputError
from marin.base.json import Json, pretty
from marin.evaluate.checkpoint import CHAT_TEMPLATE
from marin.export.gguf_tokenizer import with_cut
from marin.export.peer import absent, gguf, transformers
from marin.graph.files import FileRef, Output, Reader
from marin.model.hub import from_hugging_face_config, load_model, to_hugging_face_config
from marin.model.weights import write_tensors

log = logging.getLogger(__name__)


def import_gguf(file: FileRef, reader: Reader, output: Output) -> Json:
    """Write weights (fp32), configuration and tokenizer of a GGUF file to `output`; return a summary.

    Raises InputError where a package is missing, DataError for what this decoder cannot compute.
    """
    if missing := absent(("transformers", "gguf", "accelerate")):
        raise InputError(
            f"reading GGUF needs the package `{missing[0]}`",
            where=file.url,
            hint="pip install 'marin[gguf]'",
        )
    with tempfile.TemporaryDirectory(prefix="marin-gguf-") as folder:
        Path(folder, "model.gguf").write_bytes(reader.read(file))
        options = {"gguf_file": "model.gguf", "local_files_only": True, "trust_remote_code": False}
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
        cut = gguf.GGUFReader(Path(folder, "model.gguf")).get_field("tokenizer.ggml.pre")
        cut_name = None if cut is None else cut.contents()
    config = theirs.config.to_dict()
    config.pop("quantization_config", None)  # says how the file was stored; these weights no longer are
    decoder = from_hugging_face_config(config)
    model = load_model(decoder, theirs.state_dict(), torch.device("cpu"))
    eos_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else config.get("eos_token_id")
    if eos_id is None:
        raise DataError("the file names no end-of-text token", where=file.url, hint="use another conversion of it")
    record = {**to_hugging_face_config(decoder, eos_id=eos_id), "bos_token_id": tokenizer.bos_token_id}
    if tokenizer.pad_token_id is not None:
        record["pad_token_id"] = tokenizer.pad_token_id
    with output.open("model.safetensors") as target:
        write_tensors(target, dict(model.named_parameters()))
    output.write("config.json", pretty(record).encode())
    output.write("tokenizer.json", _tokenizer_json(tokenizer.backend_tokenizer.to_str().encode(), cut_name))
    if isinstance(tokenizer.chat_template, str):
        output.write(CHAT_TEMPLATE, tokenizer.chat_template.encode())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"architecture": config["model_type"], "parameters": parameters, "dtype": "float32"}


def _tokenizer_json(converted: bytes, cut: str | None) -> bytes:
    """Return the tokenizer that cuts text as the file says; transformers cuts nearly all as GPT-2 does."""
    if cut is None:
        return converted
    corrected = with_cut(converted, cut)
    if corrected is None:
        log.warning("the file cuts text the way of `%s`, which marin does not know: ids may differ", cut)
    return converted if corrected is None else corrected
