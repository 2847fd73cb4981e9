"""Names and order of weights in GGUF, there and back.

Queries and keys of a Llama are stored as llama.cpp turns them: RoPE of Hugging Face turns (i, i + half) of a head, that
of llama.cpp neighbours (i, i + 1), for this architecture alone. GPT-2's matrices are transposed, because transformers
keeps them as `Conv1D`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.export.peer import gguf
from marin.model.config import Decoder

_CONVOLUTIONS = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def names_in_gguf(checkpoint: LoadedCheckpoint) -> dict[str, str]:
    """Return the name in GGUF of each parameter, in the order of the model."""
    kind = checkpoint.config["model_type"]
    architecture = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    known = gguf.get_tensor_name_map(architecture, checkpoint.model.config.layers)
    return {name: known.get_name(name, try_suffixes=(".weight", ".bias")) for name in checkpoint.model.state_dict()}


def to_gguf(name: str, tensor: Tensor, checkpoint: LoadedCheckpoint) -> NDArray[np.float32]:
    """Return a parameter in fp32, in the order of GGUF."""
    tensor = tensor.float().cpu()
    if blocks_axis(name, checkpoint) == 0:
        tensor = tensor.T
    elif heads := _turned_heads(name, checkpoint):
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        tensor = halves.transpose(1, 2).reshape(tensor.shape)
    return np.ascontiguousarray(tensor.numpy())


def from_gguf(name: str, stored: NDArray[np.float32], shape: torch.Size, checkpoint: LoadedCheckpoint) -> Tensor:
    """Return a tensor of the file in the order of the parameter."""
    tensor = torch.from_numpy(np.array(stored))
    if blocks_axis(name, checkpoint) == 0:
        return tensor.T.contiguous()
    if heads := _turned_heads(name, checkpoint):
        pairs = tensor.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
        tensor = pairs.transpose(1, 2)
    return tensor.reshape(shape).contiguous()


def blocks_axis(name: str, checkpoint: LoadedCheckpoint) -> int:
    """Return the axis of a parameter along which GGUF's rows, and its blocks of numbers, run."""
    return 0 if checkpoint.config["model_type"] == "gpt2" and name.endswith(_CONVOLUTIONS) else -1


def _turned_heads(name: str, checkpoint: LoadedCheckpoint) -> int | None:
    if checkpoint.config["model_type"] != "llama":
        return None
    decoder: Decoder = checkpoint.model.config
    return {"q_proj": decoder.heads, "k_proj": decoder.num_kv_heads}.get(name.split(".")[-2])
