"""Optimisers over named parameters: AdamW, and Muon for the layers' matrices.

Invariant: state is addressed by parameter name, never by position, and is complete: an optimiser that loads what
another saved continues bit by bit. No step synchronises with the host.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from marin.base.errors import CheckpointError
from marin.train.config import AdamW, Muon
from marin.train.exchange import Exchange
from marin.train.layout import WHOLE, Layout

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, from https://kellerjordan.github.io/posts/muon."""


class ParameterUpdate:
    """Updates all parameters of a model from their `.grad`."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        config: AdamW | Muon,
        layout: Layout = WHOLE,
        shapes: Mapping[str, torch.Size] | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """`parameters`: this rank's pieces. Where the layout divides, `shapes` of the whole ones, and the ranks."""
        if isinstance(config, Muon):
            hidden = {name: p for name, p in parameters.items() if is_hidden_matrix(name, p)}
            whole = shapes or {name: p.shape for name, p in hidden.items()}
            self._muon: _MuonPart | None = _MuonPart(hidden, config, layout, whole, exchange)
            others = {name: p for name, p in parameters.items() if name not in hidden}
            # Adapters all are hidden matrices.
            self._adam: _AdamPart | None = _AdamPart(others, config.others) if others else None
        else:
            self._muon, self._adam = None, _AdamPart(parameters, config)

    def step(self, factor: float) -> None:
        """Apply one update with `factor` of the learning rates."""
        if self._muon is not None:
            self._muon.step(factor)
        if self._adam is not None:
            self._adam.step(factor)

    def state(self) -> dict[str, Tensor]:
        """Return the state by name, such as `momentum.model.layers.0.mlp.up_proj.weight`; shares memory."""
        return {**(self._muon.state() if self._muon else {}), **(self._adam.state() if self._adam else {})}

    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Take over a state saved after `steps` updates; raises CheckpointError unless names and shapes agree."""
        own = self.state()
        if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
            missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
            raise CheckpointError(
                f"the optimiser's state is of another model or optimiser (missing {missing[:3]}, extra {extra[:3]})",
                hint="resume with the configuration that wrote it, or use another checkpoints folder",
            )
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        if self._adam is not None:
            self._adam.count(steps)


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether this is a matrix inside a layer, by its Hugging Face name."""
    return parameter.ndim == 2 and is_in_layer(name)


def is_in_layer(name: str) -> bool:
    """Return whether a parameter belongs to a layer, by its Hugging Face name."""
    return ".layers." in name or name.startswith("transformer.h.")


def decays(name: str, parameter: Tensor, config: AdamW) -> bool:
    """Return whether weight decay pulls at this parameter: matrices, never norms and biases, embeddings by option."""
    is_embedding = name.endswith(("embed_tokens.weight", "wte.weight", "wpe.weight"))
    return parameter.ndim > 1 and (config.decay_embeddings or not is_embedding)


class _AdamPart:
    def __init__(self, parameters: Mapping[str, Tensor], config: AdamW) -> None:
        self._parameters = dict(parameters)
        self._lr = config.lr
        pulled = [p for name, p in parameters.items() if decays(name, p, config)]
        free = [p for name, p in parameters.items() if not decays(name, p, config)]
        groups = [{"params": pulled, "weight_decay": config.weight_decay}, {"params": free, "weight_decay": 0.0}]
        self._torch = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
        for parameter in self._parameters.values():
            self._torch.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def step(self, factor: float) -> None:
        for group in self._torch.param_groups:
            group["lr"] = self._lr * factor
        self._torch.step()

    def state(self) -> dict[str, Tensor]:
        return {
            f"{key}.{name}": self._torch.state[parameter][key]
            for key in ("exp_avg", "exp_avg_sq")
            for name, parameter in self._parameters.items()
        }

    def count(self, steps: int) -> None:
        for parameter in self._parameters.values():
            self._torch.state[parameter]["step"].fill_(steps)


class _MuonPart:
    """Matrices of one shape are stacked and orthogonalised together: few large products instead of many small."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        config: Muon,
        layout: Layout,
        shapes: Mapping[str, torch.Size],
        exchange: Exchange | None,
    ) -> None:
        self._config = config
        self._exchange = exchange
        alike: dict[tuple[torch.Size, int | None], list[str]] = {}
        for name in parameters:
            alike.setdefault((shapes[name], layout.cut(name)), []).append(name)
        self._stacks = [
            _Stack(names, [parameters[name] for name in names], shapes[names[0]]) for names in alike.values()
        ]

    @torch.no_grad()
    def step(self, factor: float) -> None:
        lr = self._config.lr * factor
        for stack in self._stacks:
            gradient = torch.stack([p.grad for p in stack.parameters if p.grad is not None])
            stack.momentum.lerp_(gradient, 1 - self._config.momentum)
            update = gradient.lerp_(stack.momentum, self._config.momentum)
            if self._exchange is None:
                update = orthogonalised(update)
            else:
                self._exchange.through_owners(stack.names, update, stack.whole, orthogonalised)
            scale = 0.2 * max(stack.whole) ** 0.5
            for parameter, change in zip(stack.parameters, update.unbind(), strict=True):
                parameter.mul_(1 - lr * self._config.weight_decay).add_(change, alpha=-lr * scale)

    def state(self) -> dict[str, Tensor]:
        return {
            f"momentum.{name}": stack.momentum[index]
            for stack in self._stacks
            for index, name in enumerate(stack.names)
        }


class _Stack:
    def __init__(self, names: list[str], parameters: list[Tensor], whole: torch.Size) -> None:
        self.names = names
        self.whole = whole
        self.parameters = parameters
        self.momentum = torch.zeros((len(names), *parameters[0].shape), device=parameters[0].device)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return the nearest orthogonal matrix to each of `[n, rows, columns]`, roughly, by five Newton-Schulz steps.

    Singular values land between 0.7 and 1.2, which is enough (same source as the coefficients). Computed in
    fp32 on CPU and in bf16 on CUDA; returned in fp32.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.mT).float()
