"""Hugging Face's configuration of a decoder, there and back, and models from such checkpoints.

Invariant: `from_hugging_face_config(to_hugging_face_config(d))` is `d` with its defaults spelled out. Parameter
names need no table, since the decoder has Hugging Face's. It reads plain values; files are the caller's.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marin.base.errors import DataError
from marin.base.json import Json
from marin.model.config import Decoder, RopeScaling
from marin.model.decoder import LanguageModel
from marin.model.init import build

_LLAMA, _QWEN2, _QWEN3 = ("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")


def to_hugging_face_config(config: Decoder, *, eos_id: int | None = None) -> dict[str, Json]:
    """Return the `config.json` with which transformers builds the same model.

    `vocab_size` and `context` must be known. RoPE is written in the form that transformers 4 and 5 both read.
    """
    if config.family == "gpt2":
        return _gpt2_config(config, eos_id)
    kind, architecture = _QWEN3 if config.qk_norm else _QWEN2 if config.qkv_bias else _LLAMA
    record: dict[str, Json] = {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": config.context or 0,
        "initializer_range": config.init_std,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config.rope_scaling),
        "tie_word_embeddings": config.tied,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "use_cache": True,
    }
    if kind != "qwen2":
        record["attention_bias"] = False
    if kind == "llama":
        record["mlp_bias"] = False
    return record


def _gpt2_config(config: Decoder, eos_id: int | None) -> dict[str, Json]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocabulary,
        "n_embd": config.width,
        "n_inner": config.mlp_size,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.context or 0,
        "activation_function": "gelu_new",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "initializer_range": config.init_std,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "use_cache": True,
    }


def _rope_scaling(scaling: RopeScaling | None) -> Json:
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_context,
    }


def from_hugging_face_config(record: Mapping[str, Any]) -> Decoder:  # Any: JSON from elsewhere
    """Return the decoder that a `config.json` describes; raises DataError for what this decoder cannot compute.

    Dropout rates are left out: this decoder has none.
    """
    kind = record.get("model_type")
    if kind not in {"llama", "qwen2", "qwen3", "gpt2"}:
        raise _unsupported(f"the architecture {kind!r}")
    if record.get("quantization_config"):
        raise _unsupported("quantised weights")
    try:
        return _read_gpt2(record) if kind == "gpt2" else _read_llama(record, kind)
    except KeyError as error:
        raise DataError(
            f"the configuration of a {kind} model lacks `{error.args[0]}`",
            where="config.json",
            hint="use the config.json that belongs to these weights",
        ) from error


def _read_llama(record: Mapping[str, Any], kind: str) -> Decoder:  # Any: JSON from elsewhere
    if record.get("hidden_act", "silu") != "silu":
        raise _unsupported(f"the activation {record['hidden_act']!r}")
    if record.get("attention_bias") or record.get("mlp_bias"):
        raise _unsupported("a bias in every projection")
    layer_types = set(record.get("layer_types") or ()) - {"full_attention"}
    if record.get("use_sliding_window") or layer_types:
        raise _unsupported("sliding-window attention")
    rope = record.get("rope_parameters") or record.get("rope_scaling") or {}
    if (rope.get("partial_rotary_factor") or record.get("partial_rotary_factor") or 1) != 1:
        raise _unsupported("RoPE over a part of each head")
    return Decoder(
        layers=record["num_hidden_layers"],
        width=record["hidden_size"],
        heads=record["num_attention_heads"],
        kv_heads=record.get("num_key_value_heads") or record["num_attention_heads"],
        head_width=record.get("head_dim") or record["hidden_size"] // record["num_attention_heads"],
        mlp_width=record["intermediate_size"],
        vocab_size=record["vocab_size"],
        context=record.get("max_position_embeddings") or None,
        rope_theta=float(rope.get("rope_theta") or record.get("rope_theta") or 10_000.0),
        rope_scaling=_read_scaling(rope),
        norm_eps=float(record["rms_norm_eps"]),
        tied=record.get("tie_word_embeddings", False),
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2",
        init_std=float(record.get("initializer_range", 0.02)),
    )


def _read_gpt2(record: Mapping[str, Any]) -> Decoder:  # Any: JSON from elsewhere
    if (activation := record.get("activation_function", "gelu_new")) not in {"gelu_new", "gelu_pytorch_tanh"}:
        raise _unsupported(f"the activation {activation!r}")
    if record.get("add_cross_attention"):
        raise _unsupported("cross-attention")
    if record.get("scale_attn_by_inverse_layer_idx") or not record.get("scale_attn_weights", True):
        raise _unsupported("another scale of attention than 1/sqrt(head size)")
    return Decoder(
        family="gpt2",
        layers=record["n_layer"],
        width=record["n_embd"],
        heads=record["n_head"],
        kv_heads=record["n_head"],
        head_width=record["n_embd"] // record["n_head"],
        mlp_width=record.get("n_inner") or 4 * record["n_embd"],
        vocab_size=record["vocab_size"],
        context=record["n_positions"],
        norm_eps=float(record["layer_norm_epsilon"]),
        tied=record.get("tie_word_embeddings", True),
        init_std=float(record.get("initializer_range", 0.02)),
    )


def _read_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:  # Any: JSON from elsewhere
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise _unsupported(f"RoPE of the type {kind!r}")
    return RopeScaling(
        factor=float(rope["factor"]),
        low_frequency_factor=float(rope["low_freq_factor"]),
        high_frequency_factor=float(rope["high_freq_factor"]),
        original_context=rope["original_max_position_embeddings"],
    )


def _unsupported(what: str) -> DataError:
    return DataError(
        f"the decoder does not have {what}",
        where="config.json",
        hint="use a Llama, Qwen2, Qwen3 or GPT-2 checkpoint without special attention",
    )


def load_model(config: Decoder, tensors: Mapping[str, Tensor], device: torch.device) -> LanguageModel:
    """Return the model with these weights in fp32; raises DataError unless every name and shape agrees."""
    model = build(config, device)
    load_weights(model, tensors)
    return model.eval()


@torch.no_grad()
def load_weights(model: LanguageModel, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights into a model; raises DataError as `own_weights` does."""
    given = own_weights(model, tensors)
    for name, parameter in model.named_parameters():
        parameter.copy_(given[name])


def own_weights(model: LanguageModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model among `tensors`; raises DataError unless every name and shape agrees.

    A tied model may carry a copy of its embedding as `lm_head.weight`, which is left out.
    """
    own = dict(model.named_parameters())
    given = {name: t for name, t in tensors.items() if not (model.config.tied and name == "lm_head.weight")}
    missing, extra = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    shapes = [
        f"{name} {list(given[name].shape)} instead of {list(own[name].shape)}"
        for name in own.keys() & given.keys()
        if own[name].shape != given[name].shape
    ]
    if missing or extra or shapes:
        raise DataError(
            f"the weights are of another model: missing {missing[:3]}, extra {extra[:3]}, shapes {sorted(shapes)[:3]}",
            where="model.safetensors",
            hint="use the weights and the config.json of one checkpoint",
        )
    return given
