"""Tensors as bytes: the safetensors format, written as a stream and read back as plain values.

Invariant: equal tensors give equal bytes, whatever the order of the mapping. No pickle. It knows files as open
streams only; where they are is the caller's matter.
Source of the format: https://github.com/huggingface/safetensors (header length, JSON header, data).
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from marin.base.errors import DataError

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}


class Sink(Protocol):
    """What bytes can be written to."""

    def write(self, data: Any, /) -> object:  # Any: anything with a buffer
        """Write a buffer whole."""


def write_tensors(file: Sink, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, one at a time in memory: widest elements first, then by name."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        tensor = tensors[name].detach().to("cpu").contiguous()
        if tensor.numel():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def read_tensors(data: bytes, *, where: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file on the CPU; raises DataError naming `where` if it is none."""
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise DataError(
            f"this is not a readable safetensors file: {error}", where=where, hint="write or download the file again"
        ) from error
