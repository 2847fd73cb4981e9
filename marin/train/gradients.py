"""Gradients of all parameters in one flat fp32 tensor, which the parameters' `.grad` are views of.

Invariant: one norm and one sum over ranks see every gradient, so what is clipped is what is logged. The last element
carries the loss, so that loss and gradients are summed by one call.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Gradients:
    """Flat gradients and the loss of one step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        members = list(parameters)
        sizes = [parameter.numel() for parameter in members]
        self.summed = torch.zeros(sum(sizes) + 1, dtype=torch.float32, device=members[0].device)
        """What ranks add up: all gradients, then the loss."""
        self._all = self.summed[:-1]
        self.loss = self.summed[-1]
        for parameter, flat in zip(members, torch.split(self._all, sizes), strict=True):
            parameter.grad = flat.view_as(parameter)

    def clear(self) -> None:
        """Set all gradients and the loss to zero."""
        self.summed.zero_()

    def clip(self, largest: float | None) -> Tensor:
        """Return the norm of the whole gradient, after scaling it down to `largest`; on the device, no wait."""
        norm: Tensor = torch.linalg.vector_norm(self._all)
        if largest is not None:
            self._all.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
        return norm
