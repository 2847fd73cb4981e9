"""In which dtype products are computed. Weights, gradients, their sums over ranks and the optimiser are always fp32."""

from contextlib import AbstractContextManager, nullcontext

import torch

from marin.train.config import Precision


def uses_bfloat16(precision: Precision, device_type: str) -> bool:
    """Return whether products are computed in bf16: `auto` does on CUDA, where it is fast, and not on the CPU."""
    return precision == "bfloat16" or (precision == "auto" and device_type == "cuda")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which forward passes run; norms, softmax and losses stay in fp32 there."""
    return torch.autocast(device.type, torch.bfloat16) if uses_bfloat16(precision, device.type) else nullcontext()
