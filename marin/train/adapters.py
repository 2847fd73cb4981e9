"""Low-rank adapters on a decoder whose own weights stay as they are (LoRA, arXiv:2106.09685).

Invariant: with B = 0 the model computes what it did, to the bit; what trains is A and B and nothing else; and what
dropout leaves out is a function of seed, stream position and adapter, so neither ranks nor micro-batches change it.
The adapters are parameters of the modules that they adapt, called `lora_A` and `lora_B` there.
Shape letters: B batch, T positions, I inputs, O outputs, R rank.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marin.base.errors import CheckpointError, ConfigurationError
from marin.base.json import Json
from marin.model.decoder import LanguageModel
from marin.model.gpt2 import Conv1D
from marin.model.init import generator
from marin.train.lora import Lora

_PEFT = "base_model.model."
_DRAWS = 24
"""Bits of a random number."""


class Adapters:
    """The adapters of one model, whose other parameters no longer train. Their values are undefined at first."""

    def __init__(self, model: LanguageModel, lora: Lora, *, seed: int) -> None:
        """`seed`: of initial values and of dropout."""
        self._lora = lora
        self._model = model
        self._modules = _targets(model, lora)
        self._samples_B: Tensor | None = None
        self._seed = seed
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for name, module in self._modules.items():
            num_in, num_out = _sizes(module)
            device = model.output_weight.device
            module.register_parameter("lora_A", nn.Parameter(torch.empty(lora.rank, num_in, device=device)))
            module.register_parameter("lora_B", nn.Parameter(torch.empty(num_out, lora.rank, device=device)))
            module.register_forward_hook(self._added(name))

    @torch.no_grad()
    def initialise(self) -> None:
        """Fill A from U(-1 / sqrt(I), 1 / sqrt(I)) by seed and name, and B with zeros."""
        for name, module in self._modules.items():
            matrix_RI = torch.empty(module.lora_A.shape)
            bound = 1 / math.sqrt(matrix_RI.shape[1])
            module.lora_A.copy_(matrix_RI.uniform_(-bound, bound, generator=generator(self._seed, f"{name}.lora_A")))
            module.lora_B.zero_()

    def draw(self, samples_B: Tensor | None) -> None:
        """Say which stream positions the next rows have, int64 `[B]`; None: nothing is left out from now on."""
        self._samples_B = samples_B

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return A and B of all adapters by name, such as `model.layers.0.mlp.up_proj.lora_A`."""
        return {
            f"{name}.{part}": getattr(module, part)
            for name, module in self._modules.items()
            for part in ("lora_A", "lora_B")
        }

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over saved adapters; raises CheckpointError unless names and shapes agree."""
        own = self.parameters()
        if {name: p.shape for name, p in own.items()} != {name: t.shape for name, t in tensors.items()}:
            raise CheckpointError(
                "the checkpoint's adapters are of another model or rank",
                hint="resume with the configuration that wrote it, or use another checkpoints folder",
            )
        for name, parameter in own.items():
            parameter.copy_(tensors[name])

    def merged(self, values: Mapping[str, Tensor]) -> "Merged":
        """Return the model's weights with adapters of these values added: what computes the same without adapters."""
        return Merged(self._model, {name: self._change(name, values) for name in self._modules})

    def _change(self, name: str, values: Mapping[str, Tensor]) -> Callable[[], Tensor]:
        a_RI, b_OR = values[f"{name}.lora_A"], values[f"{name}.lora_B"]
        is_transposed = isinstance(self._modules[name], Conv1D)

        def change() -> Tensor:
            product_OI = b_OR.detach().double() @ a_RI.detach().double() * self._lora.scale
            return product_OI.T if is_transposed else product_OI

        return change

    def _added(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        scale, dropout, salt = self._lora.scale, self._lora.dropout, _salt(self._seed, name)

        def add(module: Any, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:  # Any: torch finds parameters late
            x = inputs[0]
            if dropout and self._samples_B is not None:
                x = x * kept(self._samples_B, x, salt=salt, dropout=dropout) / (1 - dropout)
            return out + F.linear(F.linear(x, module.lora_A), module.lora_B) * scale

        return add


class Merged(Mapping[str, Tensor]):
    """Weights by name, merged in fp64 when they are asked for, so that two models never stand in memory."""

    def __init__(self, model: LanguageModel, changes: Mapping[str, Callable[[], Tensor]]) -> None:
        own = dict(model.named_parameters())
        self._weights = {name: p.detach() for name, p in own.items() if not name.endswith((".lora_A", ".lora_B"))}
        self._changes = {f"{name}.weight": change for name, change in changes.items()}

    def __getitem__(self, name: str) -> Tensor:
        weight = self._weights[name]
        return (weight.double() + self._changes[name]()).float() if name in self._changes else weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def kept(samples_B: Tensor, x_BTI: Tensor, *, salt: int, dropout: float) -> Tensor:
    """Return bool `[B, T, I]`: which inputs are kept, a hash of salt, stream position and place."""
    places = torch.arange(x_BTI[0].numel(), device=x_BTI.device).view(x_BTI.shape[1:])
    keys_B = _mix(samples_B ^ salt)
    draws = _mix(keys_B[:, None, None] + places * -7046029254386353131) & (2**_DRAWS - 1)
    mask: Tensor = draws >= int(dropout * 2**_DRAWS)
    return mask


def _mix(values: Tensor) -> Tensor:
    """Return the finaliser of splitmix64 on int64, which wraps; `>>` keeps the sign there, so it is masked."""
    values = (values ^ ((values >> 30) & (2**34 - 1))) * -4658895280553007687
    values = (values ^ ((values >> 27) & (2**37 - 1))) * -7723592293110705685
    return values ^ ((values >> 31) & (2**33 - 1))


def _salt(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"dropout:{seed}:{name}".encode()).digest()[:8], "little", signed=True)


def _targets(model: LanguageModel, lora: Lora) -> dict[str, Any]:  # Any: nn.Linear or Conv1D, with adapters later
    matrices = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name != "lm_head"
    }
    kinds = {name.rpartition(".")[2] for name in matrices}
    if unknown := [target for target in lora.targets if target not in kinds]:
        raise ConfigurationError(
            f"the model has no `{unknown[0]}` that could get an adapter",
            where="FineTune.lora.targets",
            hint=f"choose among {', '.join(sorted(kinds))}",
        )
    chosen = set(lora.targets) or kinds
    return {name: module for name, module in matrices.items() if name.rpartition(".")[2] in chosen}


def _sizes(module: nn.Linear | Conv1D) -> tuple[int, int]:
    """Return inputs and outputs."""
    first, second = module.weight.shape
    return (first, second) if isinstance(module, Conv1D) else (second, first)


def peft_tensors(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return adapters under the names that peft gives them in `adapter_model.safetensors`."""
    return {f"{_PEFT}{name}.weight": tensor for name, tensor in values.items()}


def peft_config(lora: Lora, values: Mapping[str, Tensor], *, is_gpt2: bool) -> dict[str, Json]:
    """Return peft's `adapter_config.json`; the base is the model that peft is given, and is not named there."""
    kinds = sorted({name.split(".")[-2] for name in values})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list[Json](kinds),
        "fan_in_fan_out": is_gpt2,
        "bias": "none",
        "use_rslora": False,
        "inference_mode": True,
    }
