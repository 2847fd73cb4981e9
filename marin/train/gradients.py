"""Gradients of one step: whole in one flat fp32 tensor, or in pieces where the ranks divide the state.

Invariant: one norm sees every gradient once, so what is clipped is what is logged, the same number on every rank.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from marin.model.decoder import LanguageModel
from marin.train.layout import Layout
from marin.train.ranks import Ranks


class StepGradients(Protocol):
    """What a step does with its gradients, in this order."""

    loss: Tensor
    """The step's loss so far, fp32, a scalar."""

    def clear(self) -> None:
        """Set all gradients and the loss to zero."""

    def begin(self, *, last: bool) -> None:
        """Say that a micro-batch begins, and whether it is the step's last."""

    def add_up(self, ranks: Ranks) -> None:
        """Add gradients and loss over ranks."""

    def clip(self, largest: float | None) -> Tensor:
        """Return the norm of the whole gradient, after scaling it down to `largest`; on the device, no wait."""


class Gradients:
    """Flat gradients, which the parameters' `.grad` are views of; the loss is its end, so one call adds all."""

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

    def begin(self, *, last: bool) -> None:
        """Nothing to prepare."""

    def add_up(self, ranks: Ranks) -> None:
        """Add gradients and loss over ranks."""
        ranks.add(self.summed)

    def clip(self, largest: float | None) -> Tensor:
        """Return the norm of the whole gradient, after scaling it down to `largest`; on the device, no wait."""
        norm: Tensor = torch.linalg.vector_norm(self._all)
        if largest is not None:
            self._all.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
        return norm


class DividedGradients:
    """Gradients of a divided model: torch adds them over shards and copies, this adds up loss and norm."""

    def __init__(self, model: LanguageModel, weights: Mapping[str, Tensor], layout: Layout, *, each: bool) -> None:
        """`weights`: this rank's pieces. `each`: whether gradients are added over ranks after every micro-batch."""
        self._model = model
        self._weights = dict(weights)
        self._layout = layout
        self._each = each
        device = next(iter(weights.values())).device
        self.loss = torch.zeros((), dtype=torch.float32, device=device)
        self._norm = torch.zeros((), dtype=torch.float32, device=device)

    def clear(self) -> None:
        """Let go of all gradients, set the loss to zero."""
        self.loss.zero_()
        self._model.zero_grad()
        for weight in self._weights.values():
            weight.grad = None

    def begin(self, *, last: bool) -> None:
        """Say whether the next backward pass adds gradients over ranks."""
        cast(FSDPModule, self._model).set_requires_gradient_sync(self._each or last)

    def add_up(self, ranks: Ranks) -> None:
        """Add the loss and the squares of the norm over ranks, in fp64; each piece counts once, whoever has copies."""
        by_copies: dict[int, list[Tensor]] = {}
        for name, parameter in self._model.named_parameters():
            gradient = cast(DTensor, parameter.grad).to_local()
            self._weights[name].grad = gradient
            by_copies.setdefault(self._layout.copies(name), []).append(gradient)
        norms = [get_total_norm(members).double().square() / copies for copies, members in by_copies.items()]
        loss = self.loss.double() * (1 if self._layout.leads else 0)
        sums = torch.stack([loss, torch.stack(norms).sum()])
        ranks.add(sums)
        self.loss.copy_(sums[0])
        self._norm = sums[1].sqrt().float()

    def clip(self, largest: float | None) -> Tensor:
        """Return the norm that was added up, after scaling gradients down to `largest`."""
        if largest is not None:
            clip_grads_with_norm_(self._weights.values(), largest, self._norm)
        return self._norm
