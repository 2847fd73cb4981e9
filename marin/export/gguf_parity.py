"""Parity of a GGUF file: read back, it must hold the checkpoint's weights, shape and tokenizer, and compute the same.

Weights are compared with what the checkpoint's would be in that type: equal in fp32, fp16 and bf16, within half a step
of each block in q8_0. Where transformers can read GGUF, it loads the file as others will, and its logits are compared
with those of marin's decoder on the very values that the file holds, so that rounding of the type is no excuse.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marin.base.json import Json
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.export.gguf_order import blocks_axis, from_gguf, names_in_gguf
from marin.export.gguf_tokenizer import Vocabulary
from marin.export.parity import FP32_TOLERANCE, PROBE_TEXTS, differs, probe
from marin.export.peer import absent, gguf, transformers
from marin.model.hub import load_model

log = logging.getLogger(__name__)

_STEPS = 127  # of q8_0, either side of zero
_BLOCK = 32


@torch.no_grad()
def check(path: Path, checkpoint: LoadedCheckpoint, words: Vocabulary, *, dtype: str) -> dict[str, Json]:
    """Return the report of a comparison with the written file; ExportError when anything differs."""
    reader = gguf.GGUFReader(path)
    _check_fields(reader, checkpoint, words)
    read = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    from_file = _weights(checkpoint, read, types)
    if absent(["transformers", "accelerate"]):
        log.info("checked the GGUF file by its own library alone: transformers and accelerate are not installed")
    else:
        _check_transformers(path, checkpoint, from_file)
    return {
        "format": "gguf",
        "dtype": dtype,
        "tensors": len(read),
        "tokens": len(words.tokens),
        "cut": words.cut,
        "logits_within": FP32_TOLERANCE,
    }


def _check_fields(reader: Any, checkpoint: LoadedCheckpoint, words: Vocabulary) -> None:  # Any: the library's reader
    decoder, kind = checkpoint.model.config, checkpoint.config["model_type"]

    def field(name: str) -> Any:  # Any: whatever a field holds
        found = reader.get_field(name)
        return None if found is None else found.contents()

    expected: dict[str, object] = {
        "general.architecture": kind,
        f"{kind}.block_count": decoder.layers,
        f"{kind}.context_length": decoder.context,
        f"{kind}.embedding_length": decoder.width,
        f"{kind}.feed_forward_length": decoder.mlp_size,
        f"{kind}.attention.head_count": decoder.heads,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": words.cut,
        "tokenizer.ggml.tokens": words.tokens,
        "tokenizer.ggml.token_type": words.kinds,
        "tokenizer.ggml.merges": words.merges,
        "tokenizer.ggml.eos_token_id": checkpoint.eos_id,
        "tokenizer.ggml.bos_token_id": checkpoint.start_ids[-1],
        "tokenizer.chat_template": checkpoint.chat_template,
    }
    if decoder.family != "gpt2":
        expected |= {
            f"{kind}.attention.head_count_kv": decoder.num_kv_heads,
            f"{kind}.attention.key_length": decoder.head_size,
            f"{kind}.rope.dimension_count": decoder.head_size,
            f"{kind}.rope.freq_base": float(np.float32(decoder.rope_theta)),
            f"{kind}.attention.layer_norm_rms_epsilon": float(np.float32(decoder.norm_eps)),
        }
    for name, value in expected.items():
        if field(name) != value:
            raise differs(f"the file's `{name}` is not what was written")


def _weights(
    checkpoint: LoadedCheckpoint, read: dict[str, NDArray[np.float32]], types: dict[str, str]
) -> dict[str, torch.Tensor]:
    """Return the file's weights by the names of the parameters; ExportError unless they are the checkpoint's."""
    names = names_in_gguf(checkpoint)
    if set(names.values()) != read.keys():
        raise differs(f"the file has {len(read)} tensors, the model {len(names)}")
    found: dict[str, torch.Tensor] = {}
    for name, tensor in checkpoint.model.state_dict().items():
        given = names[name]
        found[name] = from_gguf(name, read[given], tensor.shape, checkpoint)
        if not _same(tensor.float().cpu(), found[name], types[given], axis=blocks_axis(name, checkpoint)):
            raise differs(f"the file's `{given}` is not the checkpoint's `{name}`")
    return found


def _same(ours: torch.Tensor, stored: torch.Tensor, kind: str, *, axis: int) -> bool:
    if kind == "Q8_0":
        blocks = (tensor.movedim(axis, -1).reshape(-1, _BLOCK) for tensor in (ours, stored))
        ours, stored = blocks
        largest = ours.abs().amax(dim=1, keepdim=True)
        # half a step, and the scale itself rounded to fp16
        return bool(((ours - stored).abs() <= largest * (0.5 / _STEPS + 2**-10) + 1e-7).all())
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    return torch.equal(ours.to(dtype).float(), stored)


def _check_transformers(path: Path, checkpoint: LoadedCheckpoint, weights: dict[str, torch.Tensor]) -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(**checkpoint.config)
    options = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, config=config, dtype=torch.float32, **options
    ).eval()
    ours = load_model(checkpoint.model.config, weights, torch.device("cpu"))
    for text in PROBE_TEXTS:
        probe_BT = probe(checkpoint, text).cpu()
        difference = float((theirs(probe_BT).logits[0] - ours(probe_BT)[0]).abs().max())
        if not difference <= FP32_TOLERANCE:
            raise differs(f"transformers reads the file and its logits differ by {difference:.3g}")
