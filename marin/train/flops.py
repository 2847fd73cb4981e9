"""Floating-point operations of a training, and what devices can do at most: the two sides of MFU. No torch here.

Invariant: only what the model's mathematics needs counts. What is computed twice to save memory does not, so that
recomputing lowers the MFU as it lowers the speed.
"""

import re
from typing import NamedTuple

from marin.model.config import Decoder


class Peak(NamedTuple):
    """Dense FLOPS of one device, without structured sparsity; None where it has no such units."""

    device: str
    """Pattern of the name that torch gives the device."""
    bfloat16: float | None
    """bf16 products with fp32 sums, on tensor cores."""
    float32: float
    """fp32 products outside tensor cores: marin leaves TF32 off, as torch does."""


# The vendors' data sheets. Where a sheet prints figures "with sparsity", half of them stands here.
PEAKS = (
    Peak(r"\bB200\b", 2250e12, 75e12),  # NVIDIA HGX B200 data sheet, an eighth of the board
    Peak(r"\bH200 NVL\b", 835.5e12, 60e12),  # NVIDIA H200 data sheet
    Peak(r"\bH200\b", 989.5e12, 67e12),
    Peak(r"\bGH200\b", 990e12, 67e12),  # NVIDIA GH200 data sheet
    Peak(r"\bH100 NVL\b", 835.5e12, 60e12),  # NVIDIA H100 data sheet
    Peak(r"\bH100 PCIe\b", 756e12, 51e12),
    Peak(r"\bH100\b", 989.5e12, 67e12),
    Peak(r"\bA100\b", 312e12, 19.5e12),  # NVIDIA A100 data sheet
    Peak(r"\bL40S\b", 362e12, 91.6e12),  # NVIDIA L40S data sheet
    Peak(r"\bL4\b", 121e12, 30.3e12),  # NVIDIA L4 data sheet
    Peak(r"\bA10\b", 125e12, 31.2e12),  # NVIDIA A10 data sheet
    Peak(r"\bRTX A6000\b", 154.8e12, 38.7e12),  # NVIDIA RTX A6000 data sheet
    Peak(r"\bRTX 4090$", 165.2e12, 82.6e12),  # NVIDIA Ada GPU architecture, appendix A; bf16 with fp32 accumulate
    Peak(r"\bRTX 3090$", 71e12, 35.6e12),  # NVIDIA GA102 whitepaper, appendix A; bf16 with fp32 accumulate
    Peak(r"\bV100\b", None, 15.7e12),  # NVIDIA V100 data sheet; no bf16
    Peak(r"\bT4\b", None, 8.1e12),  # NVIDIA T4 data sheet; no bf16
    Peak(r"\bMI300X\b", 1307.4e12, 163.4e12),  # AMD Instinct MI300X data sheet
)


def peak_flops(device_name: str, *, bfloat16: bool) -> float | None:
    """Return the dense peak of a device in FLOPS, for bf16 or fp32 products; None where it is not known.

    A slice of a device (MIG) is not known: its share depends on how it was cut.
    """
    if re.search(r"\bMIG\b", device_name):
        return None
    for peak in PEAKS:
        if re.search(peak.device, device_name):
            return peak.bfloat16 if bfloat16 else peak.float32
    return None


def multiplied_parameters(model: Decoder) -> int:
    """Return the weights that each token is multiplied with: all matrices, the output layer, no lookup, norm or bias.

    `model.vocab_size` must be known. A tied embedding counts once, for its product.
    """
    heads, kv_heads = model.heads * model.head_size, model.num_kv_heads * model.head_size
    attention = model.width * (2 * heads + 2 * kv_heads)
    mlp = (2 if model.family == "gpt2" else 3) * model.width * model.mlp_size
    return model.layers * (attention + mlp) + model.vocabulary * model.width


def flops_per_token(model: Decoder, context: int, *, frozen: bool = False) -> int:
    """Return the operations of a forward and a backward pass for each token of sequences of `context` tokens.

    6 N + 12 L H Q T, from PaLM (arXiv:2204.02311, appendix B): N weights, each multiplied and added once forward and
    twice backward; L layers, H heads, each of size Q, T tokens of context. Of N only what is multiplied counts
    (`multiplied_parameters`). As there, attention counts in full, although half of it is masked. Weights that are
    `frozen` get no gradient: 4 N, without the few that adapters add.
    """
    attention = 12 * model.layers * model.heads * model.head_size * context
    return (4 if frozen else 6) * multiplied_parameters(model) + attention


def model_flops_utilization(
    *, tokens_per_second: float, flops_per_token: float, num_devices: int, peak: float
) -> float:
    """Return MFU, 0 to 1: `tokens_per_second * flops_per_token / (num_devices * peak)` (PaLM, appendix B).

    `tokens_per_second`: of all devices, targets or not. `peak`: FLOPS of one device.
    """
    return tokens_per_second * flops_per_token / (num_devices * peak)
