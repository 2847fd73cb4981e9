"""Activation checkpointing: a layer keeps its input alone, and is computed again for its gradients.

Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174. Invariant: what is computed
again is computed alike, so no bit of a gradient changes where kernels are deterministic.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def through(layer: nn.Module, *arguments: Any, again: bool) -> Tensor:  # Any: what the layer takes
    """Return the layer's output; with `again` it is computed a second time in the backward pass."""
    if not (again and torch.is_grad_enabled()):
        return cast(Tensor, layer(*arguments))
    # There is no dropout, so no state of random numbers need be kept.
    return cast(Tensor, checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False))
