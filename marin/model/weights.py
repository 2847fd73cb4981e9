"""Tensors as bytes: the safetensors format, written as a stream and read back as plain values.

Invariant: equal tensors give equal bytes, whatever the order of the mapping. No pickle. It knows files as open
streams only; where they are is the caller's matter.
Source of the format: https://github.com/huggingface/safetensors (header length, JSON header, data).
"""

import json
import math
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol

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


_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "U8": 8}
_LONGEST_HEADER = 100_000_000  # the format's own bound


class Sink(Protocol):
    """What bytes can be written to."""

    def write(self, data: Any, /) -> object:  # Any: anything with a buffer
        """Write a buffer whole."""


def write_tensors(file: Sink, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, one at a time in memory: widest elements first, then by name."""
    described = {name: (_DTYPES[tensor.dtype], list(tensor.shape)) for name, tensor in tensors.items()}
    for name in _write_header(file, described):
        tensor = tensors[name].detach().to("cpu").contiguous()
        if tensor.numel():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _write_header(file: Sink, described: Mapping[str, tuple[str, list[int]]]) -> list[str]:
    """Write the header for tensors by dtype and shape; return their names in the order of their data."""
    names = sorted(described, key=lambda name: (-_BITS[described[name][0]], name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        dtype, shape = described[name]
        start, end = end, end + math.prod(shape) * _BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    return names


class StoredTensor(NamedTuple):
    """A tensor in an open safetensors file: what it is, and which bytes."""

    file: BinaryIO
    dtype: str
    """The format's name, such as `BF16`."""
    shape: list[int]
    start: int
    size: int

    def read(self) -> bytes:
        """Return its bytes."""
        self.file.seek(self.start)
        return self.file.read(self.size)


def stored_tensors(file: BinaryIO, size: int, *, where: str) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file of `size` bytes, unread; raises DataError naming `where` if it is none.

    DataError also for a dtype that holds no plain numbers, such as those of quantised weights.
    """
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
        raise _unreadable("its header has no possible length", where)
    try:
        header: dict[str, Any] = json.loads(file.read(length))  # Any: JSON from elsewhere
        header.pop("__metadata__", None)
        found = {
            name: StoredTensor(file, entry["dtype"], list(entry["shape"]), 8 + length + begin, end - begin)
            for name, entry in header.items()
            for begin, end in [entry["data_offsets"]]
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable(f"its header cannot be read ({type(error).__name__})", where) from error
    for name, tensor in found.items():
        if tensor.dtype not in _BITS:
            raise DataError(
                f"`{name}` has the dtype {tensor.dtype}, which holds no plain numbers",
                where=where,
                hint="use the weights before they were quantised",
            )
        if tensor.size != math.prod(tensor.shape) * _BITS[tensor.dtype] // 8:
            raise _unreadable(f"`{name}` does not have the bytes of its shape", where)
    data_bytes = sum(tensor.size for tensor in found.values())
    if 8 + length + data_bytes != size or any(t.start < 8 + length or t.start + t.size > size for t in found.values()):
        raise _unreadable("its length is not that of its tensors", where)
    return found


def copy_tensors(file: Sink, tensors: Mapping[str, StoredTensor]) -> None:
    """Write stored tensors as `write_tensors` would, bit for bit, one at a time in memory."""
    described = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    for name in _write_header(file, described):
        file.write(tensors[name].read())


def _unreadable(what: str, where: str) -> DataError:
    return DataError(
        f"this is not a readable safetensors file: {what}", where=where, hint="write or download the file again"
    )


def read_tensors(data: bytes, *, where: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file on the CPU; raises DataError naming `where` if it is none."""
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise _unreadable(str(error), where) from error
