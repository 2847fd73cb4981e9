"""The likelihood of continuations: every way in (tasks, lm-evaluation-harness, canaries) is scored here.

Invariant: the layout (padding, batch size, order, what shares a row) changes no likelihood beyond rounding, and no
result is given unless all are. Losses are fp32, their sums fp64.
Shape letters: B rows, T positions, V vocabulary, N distinct positions, M targets.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from marin.base.errors import DataError
from marin.evaluate.cache import Cache, continue_hidden
from marin.evaluate.packing import Batch, batches
from marin.evaluate.requests import Request, fit
from marin.model.decoder import LanguageModel

Progress = Callable[[float, float, str], None]

_CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 26}


class Likelihood(NamedTuple):
    """What a model makes of one continuation."""

    nats: float
    """Summed negative log-likelihood."""
    tokens: int
    greedy: bool
    """Whether each token is the model's most likely one."""
    cut: int
    """Tokens of the context that did not fit, cut off on the left."""


class Losses(NamedTuple):
    """Per target of a batch: negative log-likelihood in nats, and whether it is the most likely token."""

    nats: NDArray[np.floating]
    greedy: NDArray[np.bool_]


class Predictor(Protocol):
    """What is scored: a model, or a canary that answers from a table."""

    def losses(self, batch: Batch) -> Losses: ...


def score_requests(
    predictor: Predictor,
    requests: Sequence[Request],
    *,
    context: int,
    batch_tokens: int,
    progress: Progress | None = None,
) -> list[Likelihood]:
    """Return the likelihood of each request, in order; equal requests are computed once.

    `context`: tokens that the model sees at once. Raises DataError for a continuation that does not fit, and for a
    model whose losses are not finite.
    """
    fitted = [fit(request, context) for request in requests]
    distinct = list(dict.fromkeys(each.request for each in fitted))
    nats, misses = np.zeros(len(distinct)), np.zeros(len(distinct), np.int64)
    done = 0
    for batch in batches(distinct, batch_tokens=batch_tokens):
        losses = predictor.losses(batch)
        np.add.at(nats, batch.owners, losses.nats.astype(np.float64))
        np.add.at(misses, batch.owners, ~losses.greedy)
        done += len(np.unique(batch.owners))
        if progress is not None:
            progress(done, len(distinct), "continuations")
    if not np.isfinite(nats).all():
        raise DataError(
            "the model gives likelihoods that are not finite",
            where="checkpoint",
            hint="the run diverged: lower the learning rate, or score an earlier checkpoint",
        )
    numbers = {request: number for number, request in enumerate(distinct)}
    return [
        Likelihood(float(nats[number]), len(each.request.continuation), not misses[number], each.cut)
        for each in fitted
        for number in [numbers[each.request]]
    ]


class ModelPredictor:
    """A model; it keeps the keys and values of the prefix that it was last asked for."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._device = model.output_weight.device
        self._prefix: tuple[int, ...] = ()
        self._past: Cache = ()

    @torch.no_grad()
    def losses(self, batch: Batch) -> Losses:
        """Return the loss of every target of the batch."""
        tokens_BT = torch.from_numpy(batch.tokens).to(self._device)
        if batch.mask is None:
            hidden_BTD = self._model.hidden(tokens_BT)
        else:
            positions_BT = torch.from_numpy(batch.positions).to(self._device)
            mask = torch.from_numpy(batch.mask).to(self._device).unsqueeze(1)
            past = self._kept(batch.prefix)
            hidden_BTD, _ = continue_hidden(self._model, tokens_BT, positions_BT, mask, past)
        flat = batch.rows * batch.tokens.shape[1] + batch.places
        distinct_N, numbers_M = np.unique(flat, return_inverse=True)
        hidden_ND = hidden_BTD.flatten(0, 1)[torch.from_numpy(distinct_N).to(self._device)]
        return self._target_losses(hidden_ND, numbers_M, batch.targets)

    def _kept(self, prefix: tuple[int, ...]) -> Cache:
        if not prefix:
            return ()
        if prefix != self._prefix:
            tokens_BT = torch.tensor([prefix], device=self._device)
            positions_T = torch.arange(len(prefix), device=self._device)
            self._prefix, self._past = prefix, continue_hidden(self._model, tokens_BT, positions_T, None)[1]
        return self._past

    def _target_losses(self, hidden_ND: Tensor, numbers_M: NDArray[np.int64], targets_M: NDArray[np.int64]) -> Losses:
        """Return the losses of targets at distinct positions; logits stand in memory for some positions at a time."""
        weight_VD = self._model.output_weight
        size = max(64, _CHUNK_ELEMENTS.get(hidden_ND.device.type, 1 << 24) // weight_VD.shape[0])
        nats, greedy = np.zeros(len(targets_M), np.float32), np.zeros(len(targets_M), bool)
        for begin in range(0, hidden_ND.shape[0], size):
            logits_CV = F.linear(hidden_ND[begin : begin + size], weight_VD).float()
            here = np.flatnonzero((numbers_M >= begin) & (numbers_M < begin + size))
            rows = torch.from_numpy(numbers_M[here] - begin).to(hidden_ND.device)
            targets = torch.from_numpy(targets_M[here]).to(hidden_ND.device)
            chosen = logits_CV[rows, targets]
            nats[here] = (logits_CV.logsumexp(dim=1)[rows] - chosen).cpu().numpy()
            greedy[here] = (logits_CV.argmax(dim=1)[rows] == targets).cpu().numpy()
        return Losses(nats, greedy)
