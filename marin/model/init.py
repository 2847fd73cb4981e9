"""Initial weights, a pure function of (seed, parameter name, full shape).

Invariant: each parameter has a generator of its own, so the values depend neither on the order in which parameters
are made nor on how many ranks hold the model.
"""

import hashlib
import math

import torch
from torch import Tensor

from marin.model.config import Decoder
from marin.model.decoder import LanguageModel

_TO_RESIDUAL = ("o_proj.weight", "down_proj.weight", "c_proj.weight")


def generator(seed: int, name: str) -> torch.Generator:
    """Return the CPU generator that belongs to this seed and name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def outline(config: Decoder) -> LanguageModel:
    """Return the model on the device `meta`: shapes without memory."""
    with torch.device("meta"):
        return LanguageModel(config)


def build(config: Decoder, device: torch.device) -> LanguageModel:
    """Return the model on `device` with fp32 memory for its weights, which are undefined."""
    return outline(config).to_empty(device=device)


@torch.no_grad()
def initialise(model: LanguageModel, seed: int) -> None:
    """Fill every parameter: norms with 1, biases with 0, matrices from N(0, init_std), in fp32 on the CPU.

    Matrices that write to the residual stream get init_std / sqrt(2 layers), as in GPT-2, section 2.3.
    """
    for name, parameter in model.named_parameters():
        parameter.copy_(initial(name, parameter.shape, model.config, seed))


def initial(name: str, shape: torch.Size, config: Decoder, seed: int) -> Tensor:
    """Return the initial value of one whole parameter, fp32 on the CPU."""
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    std = config.init_std
    if name.endswith(_TO_RESIDUAL):
        std /= math.sqrt(2 * config.layers)
    return torch.empty(shape).normal_(0, std, generator=generator(seed, name))
