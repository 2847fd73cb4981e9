"""What a rank of a training will hold in memory, before anything is allocated.

Weights, gradients and optimiser are counted. What a forward pass keeps for the backward one is found by running one and
two layers on tensors without data, so it follows the model's code instead of a formula of its own.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from marin.base.errors import ConfigurationError
from marin.base.units import format_size
from marin.model.config import Decoder
from marin.model.cross_entropy import chunk_elements
from marin.model.decoder import LanguageModel
from marin.model.init import outline
from marin.train.adapters import Adapters
from marin.train.config import Muon, TrainConfig
from marin.train.layout import Layout
from marin.train.optimizer import is_hidden_matrix, is_in_layer
from marin.train.precision import autocast, uses_bfloat16

_FP32 = 4
_CPU = torch.device("cpu")


class Memory(NamedTuple):
    """Bytes on one rank."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    """What the forward pass of one micro-batch keeps, and the buffers of the loss."""
    gathered: int = 0
    """Where the state is divided: whole weights and gradients of the layers that are being computed."""

    @property
    def lasting(self) -> int:
        """What is held between steps, whatever the batch."""
        return self.parameters + self.gradients + self.optimizer + self.average

    @property
    def total(self) -> int:
        """All of it; an allocator's own share, some percent, comes on top."""
        return self.lasting + self.gathered + self.activations


def estimate(config: TrainConfig, *, world_size: int, device_type: str) -> Memory:
    """Return the memory of a rank; `config` must be resolved. Takes some tenths of a second."""
    layout = Layout(config.parallel.axes(world_size))
    model = outline(config.model)
    if config.lora:
        Adapters(model, config.lora, seed=config.seed)
    members = dict(model.named_parameters())
    # Rank 0 stands for all: none has a larger piece.
    sizes = {name: layout.piece(name, parameter).numel() * _FP32 for name, parameter in members.items()}
    shapes = {name: parameter for name, parameter in members.items() if parameter.requires_grad}
    trained = sum(sizes[name] for name in shapes)
    moments = 2 * trained
    if isinstance(config.optimizer, Muon):
        moments -= sum(sizes[name] for name, parameter in shapes.items() if is_hidden_matrix(name, parameter))
    gathered, gradients = 0, trained + _FP32
    if layout.divides:
        whole = {name: layout.tensor_part(name, parameter).numel() * _FP32 for name, parameter in shapes.items()}
        if config.parallel.add_gradients == "step":
            gradients += sum(whole.values())
        gathered = _gathered(whole, config.model.layers)
    return Memory(
        parameters=sum(sizes.values()),
        gradients=gradients,
        optimizer=moments,
        average=trained if config.ema else 0,
        activations=_activations(config, layout.data_ranks, device_type),
        gathered=gathered,
    )


def _gathered(whole: Mapping[str, int], layers: int) -> int:
    """Return the bytes of what stands whole at once: all that is outside of layers, and two layers, with gradients."""
    inside = sum(size for name, size in whole.items() if is_in_layer(name))
    return 2 * (sum(whole.values()) - inside + min(2, layers) * inside // layers)


def check_fits(needed: Memory, available: int, *, where: str) -> None:
    """Raise ConfigurationError if what lasts alone needs more than `available` bytes, whatever the micro-batch."""
    if needed.lasting + needed.gathered > available:
        raise ConfigurationError(
            f"weights {format_size(needed.parameters)}, gradients {format_size(needed.gradients)} and optimiser "
            f"{format_size(needed.optimizer + needed.average)}"
            + (f", and {format_size(needed.gathered)} of layers made whole," if needed.gathered else "")
            + f" do not fit into {format_size(available)}",
            where=where,
            hint="divide them among ranks with Parallel(shard='all'), on more ranks if it is so already, "
            "or train a smaller model",
        )


def _activations(config: TrainConfig, data_ranks: int, device_type: str) -> int:
    model, context = config.model, config.model.context
    assert context is not None
    share = -(-config.batch // data_ranks)
    rows = min(config.micro_batch or share, share)
    one, two = (_kept(config, layers, rows, device_type) for layers in (1, 2))
    layer = two - one
    width_bytes = 2 if uses_bfloat16(config.precision, device_type) else _FP32
    if config.recompute == "block":  # each block keeps its input; the one that is computed again, all
        kept = one - layer + rows * context * model.width * width_bytes * model.layers + layer
    else:
        kept = one - layer + model.layers * layer
    return kept + _loss_buffers(model, rows * context, width_bytes, device_type, is_frozen=config.lora is not None)


def _loss_buffers(model: Decoder, num_tokens: int, width_bytes: int, device_type: str, *, is_frozen: bool) -> int:
    """Return the bytes of both gradients that `linear_cross_entropy` keeps, and of one chunk of logits."""
    matrix = model.vocabulary * model.width
    cast = matrix * width_bytes if width_bytes < _FP32 else 0
    logits = max(model.vocabulary, min(chunk_elements(device_type), num_tokens * model.vocabulary))
    gradient = 0 if is_frozen else matrix * _FP32
    return num_tokens * model.width * width_bytes + gradient + cast + logits * (_FP32 + width_bytes)


def _kept(config: TrainConfig, layers: int, rows: int, device_type: str) -> int:
    """Return the bytes that hidden states of a model of so many layers keep for their gradients."""
    kept: dict[int, Tensor] = {}
    with FakeTensorMode():
        model = LanguageModel(config.model.model_copy(update={"layers": layers}))
        adapters = Adapters(model, config.lora, seed=config.seed) if config.lora else None
        own = {_storage(parameter) for parameter in model.parameters()}

        def note(tensor: Tensor) -> Tensor:
            if _storage(tensor) not in own:
                kept[_storage(tensor)] = tensor
            return tensor

        tokens_BT = torch.zeros((rows, config.model.context or 0), dtype=torch.int64)
        if adapters is not None:
            adapters.draw(torch.zeros(rows, dtype=torch.int64))
        segments_BT = tokens_BT if config.document_mask else None
        # The CPU stands for every device: shapes and dtypes of what is kept are alike.
        precision = autocast("bfloat16" if uses_bfloat16(config.precision, device_type) else "float32", _CPU)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), precision:
            model.hidden(tokens_BT, segments_BT)
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _storage(tensor: Tensor) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found
