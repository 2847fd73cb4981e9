"""Decoder: configuration, initialisation, masks, cross-entropy, weights as bytes."""

import io

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from marin.base.errors import ConfigurationError, DataError
from marin.model.config import Decoder
from marin.model.cross_entropy import linear_cross_entropy, token_losses
from marin.model.decoder import LanguageModel
from marin.model.hub import from_hugging_face_config, load_weights, to_hugging_face_config
from marin.model.init import build, initialise
from marin.model.weights import read_tensors, write_tensors

CPU = torch.device("cpu")
SMALL = Decoder(layers=2, width=32, heads=4, vocab_size=61, context=32)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(config: Decoder, seed: int = 0) -> LanguageModel:
    model = build(config, CPU)
    initialise(model, seed)
    return model


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"heads": 5}, "heads"),
        ({"kv_heads": 3}, "kv_heads"),
        ({"head_width": 7}, "head_width"),
        ({"qk_norm": True, "qkv_bias": True}, "qkv_bias"),
        ({"layers": 0}, "layers"),
        ({"init_std": 0.0}, "init_std"),
        ({"norm_eps": float("nan")}, "norm_eps"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"family": "gpt2", "kv_heads": 2}, "kv_heads"),
        ({"family": "gpt2", "head_width": 16}, "head_width"),
        ({"family": "gpt2", "qk_norm": True}, "qk_norm"),
        ({"family": "gpt2", "qkv_bias": True}, "qkv_bias"),
        ({"family": "gpt2", "rope_theta": 5e5}, "rope_theta"),
        ({"family": "gpt2", "heads": 3}, "heads"),
    ],
)
def test_decoder_with_impossible_shapes_is_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError, match=field) as caught:
        Decoder(**{"layers": 2, "width": 32, "heads": 4, **options})
    assert caught.value.hint


def test_decoder_with_data_of_more_ids_or_other_context_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="100 token ids, the model has 61"):
        SMALL.with_data(vocab_size=100, context=32)
    with pytest.raises(ConfigurationError, match="sequences of 64 tokens, the model expects 32"):
        SMALL.with_data(vocab_size=61, context=64)


def test_decoder_without_vocabulary_takes_it_from_the_data() -> None:
    open_model = Decoder(layers=1, width=8, heads=2)
    filled = open_model.with_data(vocab_size=50, context=16)
    assert (filled.vocabulary, filled.context) == (50, 16)
    with pytest.raises(ConfigurationError, match="not known yet"):
        build(open_model, CPU)


def test_initial_weights_depend_on_seed_and_name_only() -> None:
    small, deep = made(SMALL), made(SMALL.model_copy(update={"layers": 5}))
    key = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(small.state_dict()[key], deep.state_dict()[key])
    assert not torch.equal(small.state_dict()[key], made(SMALL, seed=1).state_dict()[key])
    torch.manual_seed(5)
    again = made(SMALL)
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), again.parameters(), strict=True))


def test_initial_weights_have_the_declared_spread() -> None:
    state = made(Decoder(layers=8, width=128, heads=4, vocab_size=1000)).state_dict()
    assert float(state["model.embed_tokens.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert float(state["model.layers.3.mlp.down_proj.weight"].std()) == pytest.approx(0.02 / 4, rel=0.02)
    assert bool((state["model.norm.weight"] == 1).all())


def test_logits_of_a_position_ignore_later_tokens() -> None:
    model = made(SMALL)
    tokens = torch.randint(0, 61, (2, 20), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 61
    assert torch.equal(model(tokens)[:, :12], model(changed)[:, :12])


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    model = made(SMALL)
    tokens = torch.randint(0, 61, (3, 20), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model(tokens)[1], model(tokens[1:2])[0], rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 300), vocabulary=st.integers(2, 9000), masked=st.floats(0, 1), seed=st.integers(0, 99))
def test_linear_cross_entropy_for_any_shape_equals_the_plain_formula(
    n: int, vocabulary: int, masked: float, seed: int
) -> None:
    noise = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 8, generator=noise, requires_grad=True)
    weight = torch.randn(vocabulary, 8, generator=noise, requires_grad=True)
    targets = torch.randint(0, vocabulary, (n,), generator=noise)
    targets[torch.rand(n, generator=noise) < masked] = -100
    loss = linear_cross_entropy(hidden, weight, targets)
    got = torch.autograd.grad(loss * 0.5, (hidden, weight))
    expected = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    wanted = torch.autograd.grad(expected * 0.5, (hidden, weight))
    assert torch.allclose(loss, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("z_loss", [1e-4, 0.1])
def test_linear_cross_entropy_with_z_loss_has_its_gradient_and_shows_the_cross_entropy(z_loss: float) -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(200, 8, generator=noise, requires_grad=True)
    weight = torch.randn(30_000, 8, generator=noise, requires_grad=True)
    targets = torch.randint(0, 30_000, (200,), generator=noise)
    targets[50:90] = -100
    loss = linear_cross_entropy(hidden, weight, targets, z_loss=z_loss)
    got = torch.autograd.grad(loss, (hidden, weight))
    logits = hidden @ weight.T
    plain = F.cross_entropy(logits, targets, reduction="sum")
    squares = (logits.logsumexp(dim=1)[targets != -100] ** 2).sum()
    wanted = torch.autograd.grad(plain + z_loss * squares, (hidden, weight))
    assert torch.allclose(loss, plain, rtol=1e-5)
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements that any operation put out."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.numel())
        return out


def test_logits_of_a_large_vocabulary_never_stand_in_memory_whole() -> None:
    num_positions, vocabulary = 1024, 40_000
    hidden = torch.randn(num_positions, 4, requires_grad=True)
    weight = torch.randn(vocabulary, 4, requires_grad=True)
    targets = torch.randint(0, vocabulary, (num_positions,))
    with LargestTensor() as seen:
        linear_cross_entropy(hidden, weight, targets, z_loss=1e-4).backward()
        token_losses(hidden, weight, targets)
    assert seen.most <= max(64 * vocabulary, 1 << 20)  # of 41 million
    with LargestTensor() as whole:
        hidden @ weight.T
    assert whole.most == num_positions * vocabulary


def test_linear_cross_entropy_with_all_masked_is_an_exact_zero() -> None:
    hidden = torch.full((4, 8), 1e3, requires_grad=True)
    weight = torch.full((5, 8), 1e3, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.full((4,), -100))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert hidden.grad is not None
    assert weight.grad is not None
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_token_losses_sum_to_the_training_loss() -> None:
    model = made(SMALL)
    rows = torch.randint(0, 61, (3, 21), generator=torch.Generator().manual_seed(0))
    targets = rows[:, 1:].clone()
    targets[0, :7] = -100
    losses = model.token_losses(rows[:, :-1], targets)
    assert losses.shape == (3, 20)
    assert not losses[0, :7].any()
    assert float(losses.sum()) == pytest.approx(float(model.loss_sum(rows[:, :-1], targets).detach()), rel=1e-5)
    assert token_losses(torch.zeros(0, 8), torch.zeros(5, 8), torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_loss_under_bf16_autocast_is_near_fp32_with_fp32_gradients() -> None:
    model = made(SMALL)
    rows = torch.randint(0, 61, (3, 21), generator=torch.Generator().manual_seed(0))
    exact = model.loss_sum(rows[:, :-1], rows[:, 1:])
    wanted = torch.autograd.grad(exact, list(model.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.loss_sum(rows[:, :-1], rows[:, 1:])
    got = torch.autograd.grad(rough, list(model.parameters()))
    assert float(rough.detach()) == pytest.approx(float(exact.detach()), rel=1e-3)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).norm()) < 0.05 * float(theirs.norm())


def test_tensors_written_in_any_order_give_equal_bytes_that_safetensors_reads() -> None:
    tensors = {
        "b": torch.arange(6, dtype=torch.float32).view(2, 3),
        "a": torch.arange(5).bfloat16(),
        "c": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    first, second = io.BytesIO(), io.BytesIO()
    write_tensors(first, tensors)
    write_tensors(second, dict(reversed(tensors.items())))
    assert first.getvalue() == second.getvalue()
    back = safetensors.torch.load(first.getvalue())
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert read_tensors(first.getvalue(), where="here").keys() == tensors.keys()


def test_tensors_from_torn_bytes_name_the_file() -> None:
    file = io.BytesIO()
    write_tensors(file, {"a": torch.ones(3)})
    with pytest.raises(DataError, match="not a readable safetensors") as caught:
        read_tensors(file.getvalue()[:-2], where="model.safetensors")
    assert caught.value.where == "model.safetensors"


def test_weights_of_another_model_are_refused_with_names_and_shapes() -> None:
    state = dict(made(SMALL).state_dict())
    other = made(SMALL.model_copy(update={"vocab_size": 62}))
    with pytest.raises(DataError, match=r"embed_tokens.weight \[61, 32\] instead of \[62, 32\]"):
        load_weights(other, state)
    state.pop("model.norm.weight")
    with pytest.raises(DataError, match=r"missing \['model.norm.weight'\]"):
        load_weights(made(SMALL), state)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mamba"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"partial_rotary_factor": 0.5},
        {"quantization_config": {"bits": 4}},
        {"model_type": "gpt2", "activation_function": "relu"},
        {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True},
    ],
)
def test_hugging_face_config_of_an_unknown_kind_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DataError, match="the decoder does not have"):
        from_hugging_face_config({**to_hugging_face_config(SMALL), **change})
