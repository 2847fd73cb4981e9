"""Cross-entropy of a linear output layer without the logits ever standing in memory whole.

Logits are made, used and dropped for one chunk of positions at a time; the gradients of hidden states and of the
weight are computed in the same pass, so that nothing is computed twice. Softmax and all sums are fp32.
Shape letters: N positions, D width, V vocabulary, C positions of a chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

MASKED = -100
"""Target of a position that does not count."""

# Elements of one chunk of logits: 4 MB of fp32 stay in a CPU's cache; a GPU wants long products.
_CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # Any: autograd's own
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        z_loss: float,
    ) -> Tensor:
        dtype = torch.get_autocast_dtype(hidden_ND.device.type) if _autocast(hidden_ND) else hidden_ND.dtype
        hidden, weight = hidden_ND.to(dtype), weight_VD.to(dtype)
        losses = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None  # a frozen one costs nothing
        with torch.autocast(hidden.device.type, enabled=False):
            for chunk in _chunks(hidden, weight):
                logits = (hidden[chunk] @ weight.T).float()
                targets = targets_N[chunk]
                losses += _replace_by_gradient(logits, targets, z_loss)
                gradient = logits.to(dtype)
                torch.mm(gradient, weight, out=grad_hidden[chunk])
                if grad_weight is not None:
                    _add_product(grad_weight, gradient, hidden[chunk])
        ctx.save_for_backward(grad_hidden.to(hidden_ND.dtype), grad_weight)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor | None, None, None]:  # Any: autograd's own
        grad_hidden, grad_weight = ctx.saved_tensors
        weighted = None if grad_weight is None else grad_weight * grads[0]
        return grad_hidden * grads[0].to(grad_hidden.dtype), weighted, None, None


def _autocast(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)


def chunk_elements(device_type: str) -> int:
    """Return how many logits stand in memory at once."""
    return _CHUNK_ELEMENTS.get(device_type, 1 << 24)


def _chunks(hidden_ND: Tensor, weight_VD: Tensor) -> list[slice]:
    budget = chunk_elements(hidden_ND.device.type)
    size = max(64, budget // weight_VD.shape[0])
    return [slice(start, start + size) for start in range(0, hidden_ND.shape[0], size)]


def _replace_by_gradient(logits_CV: Tensor, targets_C: Tensor, z_loss: float) -> Tensor:
    """Return the summed cross-entropy and turn fp32 logits into its gradient, that of the z-loss added, in place."""
    counted = targets_C != MASKED
    index = targets_C.where(counted, 0).unsqueeze(1)
    chosen = logits_CV.gather(1, index).squeeze(1)
    peak = logits_CV.amax(dim=1, keepdim=True)
    logits_CV.sub_(peak).exp_()
    total = logits_CV.sum(dim=1, keepdim=True)
    normalisers = total.log() + peak
    losses = normalisers.squeeze(1) - chosen
    weights = counted.to(logits_CV.dtype).unsqueeze(1)
    scale = weights * (1 + 2 * z_loss * normalisers) if z_loss else weights
    logits_CV.mul_(scale / total)
    logits_CV.scatter_add_(1, index, -weights)
    return losses.masked_fill(~counted, 0).sum()


def _add_product(total_VD: Tensor, gradient_CV: Tensor, hidden_CD: Tensor) -> None:
    if gradient_CV.dtype == total_VD.dtype:
        total_VD.addmm_(gradient_CV.T, hidden_CD)
    else:
        total_VD.add_(gradient_CV.T @ hidden_CD)


def linear_cross_entropy(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, *, z_loss: float = 0.0) -> Tensor:
    """Return the fp32 sum of -log softmax(hidden @ weight.T)[target] over positions that are not MASKED.

    `hidden_ND` fp32 or bf16, `weight_VD` fp32, `targets_N` int64. Under autocast products run in its dtype;
    softmax and sums are fp32. All masked gives an exact 0 with zero gradients.

    `z_loss` adds the gradient of `z_loss * sum(logsumexp(logits)**2)` over the same positions (PaLM, arXiv:2204.02311,
    section 5), which keeps logits small. The value stays the cross-entropy alone, so that curves compare.
    """
    loss: Tensor = _LinearCrossEntropy.apply(hidden_ND, weight_VD, targets_N, z_loss)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def token_losses(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return each position's cross-entropy `[N]` in fp32, 0 where MASKED; no gradient."""
    counted_N = targets_N != MASKED
    kept_ND, kept_N = hidden_ND[counted_N], targets_N[counted_N]
    losses_N = hidden_ND.new_zeros(hidden_ND.shape[0], dtype=torch.float32)
    if kept_N.numel():
        losses_N[counted_N] = torch.cat(
            [
                F.cross_entropy(F.linear(kept_ND[chunk], weight_VD).float(), kept_N[chunk], reduction="none")
                for chunk in _chunks(kept_ND, weight_VD)
            ]
        )
    return losses_N
