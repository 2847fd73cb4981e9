"""The model's modules divided among ranks by torch: matrices among tensor ranks, everything among shards.

Tensor parallel after Shoeybi et al. 2019 (Megatron-LM, arXiv:1909.08053, section 3): heads and the feed-forward layer's
inner size are divided, so that a layer adds up twice over ranks forward and twice backward. Embedding, output layer and
norms of the residual stream are computed alike by all tensor ranks. Sharding is `fully_shard` (FSDP2), layer by layer.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from marin.model.decoder import LanguageModel
from marin.train.config import TrainConfig
from marin.train.layout import Layout
from marin.train.precision import uses_bfloat16

_HEAD_DIMENSION = 2
"""Of `[B, T, heads, K]`, which norms of queries and keys see."""


def divide(model: LanguageModel, config: TrainConfig, layout: Layout, device: torch.device) -> None:
    """Divide a model without data (on `meta`) among ranks and give it undefined memory; every rank must call."""
    mesh = init_device_mesh(device.type, tuple(layout.axes), mesh_dim_names=layout.axes._fields)
    if layout.axes.tensor > 1:
        for layer in model.layers:
            parallelize_module(layer, mesh["tensor"], _tensor_plan(config))
    shards = mesh["replicate", "shard"] if layout.axes.replicate > 1 else mesh["shard"]
    # Autocast rounds a layer's fp32 weights to bf16 for every product, so sending them as bf16 loses nothing; GPT-2's
    # LayerNorms use theirs in fp32, as the root's embedding and output layer do.
    low = uses_bfloat16(config.precision, device.type) and config.model.family == "llama"
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if low else None, reduce_dtype=torch.float32)
    for layer in model.layers:
        _shard(layer, shards, policy)
    _shard(model, shards, MixedPrecisionPolicy(reduce_dtype=torch.float32))
    for method in ("loss_sum", "token_losses", "likeliest"):
        register_fsdp_forward_method(model, method)
    model.to_empty(device=device)
    for module in _sharded(model):  # an uneven piece is moved to padded memory at the first use: let that be now
        module.unshard()
        module.reshard()


def _shard(module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    fully_shard(module, mesh=mesh, mp_policy=policy)
    sharded = cast(FSDPModule, module)
    # The loss is divided by the number of targets already, so gradients are added up, not averaged.
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)


def _tensor_plan(config: TrainConfig) -> dict[str, ParallelStyle]:
    first = (Replicate(),)
    # The input is said to be alike on all ranks once for all products, so its gradient is added over ranks once.
    plan: dict[str, ParallelStyle] = {
        "self_attn": PrepareModuleInput(
            input_layouts=(*first, None, None, None), desired_input_layouts=(*first, None, None, None)
        ),
        "mlp": PrepareModuleInput(input_layouts=first, desired_input_layouts=first),
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[name] = ColwiseParallel()
    if config.model.qk_norm:
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            plan[name] = SequenceParallel(sequence_dim=_HEAD_DIMENSION, use_local_output=True)
    return plan


def local_weights(model: LanguageModel) -> dict[str, Tensor]:
    """Return this rank's pieces of all parameters by name, as plain tensors that share their memory."""
    return {name: cast(DTensor, parameter.detach()).to_local() for name, parameter in model.named_parameters()}


def forget_whole(model: LanguageModel) -> None:
    """Let go of weights that a look without gradients left gathered, so that none is used after it has changed."""
    for module in _sharded(model):
        module.reshard()


def _sharded(model: LanguageModel) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
