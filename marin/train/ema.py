"""Exponential moving average of the weights, kept beside them and left as the result.

Invariant: the average after a step is a function of the average before it, the weights and the step's number, so it
is saved and resumed as tensors alone. fp32, one copy of all parameters.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from marin.base.errors import CheckpointError


class WeightAverage:
    """Average of named parameters, at first equal to them."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self._parameters = dict(parameters)
        self._decay = decay
        self._average = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after `step`; early steps weigh more, so that the first weights are forgotten.

        The decay is min(decay, (1 + step) / (10 + step)), as in TensorFlow's ExponentialMovingAverage.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, average in self._average.items():
            average.lerp_(self._parameters[name], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages where the weights are for a while; both are what they were afterwards, to the bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, average in self._average.items():
            weight = self._parameters[name].detach().clone()  # one more at a time, never all of them
            self._parameters[name].copy_(average)
            average.copy_(weight)

    def state(self) -> dict[str, Tensor]:
        """Return the averages by parameter name; shares memory."""
        return dict(self._average)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over saved averages; raises CheckpointError unless names and shapes agree."""
        shapes = {name: average.shape for name, average in self._average.items()}
        if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
            raise CheckpointError(
                "the checkpoint's average is of another model",
                hint="resume with the configuration that wrote it, or use another checkpoints folder",
            )
        for name, average in self._average.items():
            average.copy_(tensors[name])
