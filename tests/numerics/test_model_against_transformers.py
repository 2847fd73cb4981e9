"""The decoder against transformers' Llama, Qwen2, Qwen3 and GPT-2: equal weights give equal logits and gradients."""

import pytest
import torch
import transformers

from marin.model.config import Decoder, RopeScaling
from marin.model.decoder import LanguageModel
from marin.model.hub import from_hugging_face_config, load_model, load_weights, to_hugging_face_config
from marin.model.init import build, initialise

TOLERANCE = 1e-5
CPU = torch.device("cpu")
BASE = Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=97, context=64)
LONG = RopeScaling(factor=8.0, original_context=16)
DECODERS = {
    "llama": BASE,
    "llama-untied": BASE.model_copy(update={"tied": False, "kv_heads": 4}),
    "llama3-rope": BASE.model_copy(update={"rope_scaling": LONG, "rope_theta": 500_000.0}),
    "qwen2": BASE.model_copy(update={"qkv_bias": True}),
    "qwen2-untied": BASE.model_copy(update={"qkv_bias": True, "tied": False}),
    "qwen3": BASE.model_copy(update={"qk_norm": True, "head_width": 16}),
    "qwen3-untied": BASE.model_copy(update={"qk_norm": True, "kv_heads": 1, "tied": False}),
    "gpt2": Decoder(family="gpt2", layers=2, width=32, heads=4, vocab_size=97, context=64),
    "gpt2-untied": Decoder(family="gpt2", layers=2, width=32, heads=4, vocab_size=97, context=64, tied=False),
}


def with_noise(config: Decoder) -> LanguageModel:
    """Return a model whose norms and biases are no longer 1 and 0, so that a forgotten one shows."""
    model = build(config, CPU)
    initialise(model, seed=3)
    noise = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=noise))
    return model


def reference(model: LanguageModel) -> transformers.PreTrainedModel:
    record = to_hugging_face_config(model.config)
    config = transformers.AutoConfig.for_model(**record)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    missing, unexpected = theirs.load_state_dict(model.state_dict(), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    theirs.tie_weights()
    return theirs.eval()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_beside_transformers_gives_equal_logits(name: str) -> None:
    model = with_noise(DECODERS[name])
    tokens = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(0))
    ours, theirs = model(tokens), reference(model)(tokens).logits
    assert torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * float(theirs.detach().abs().max()))


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_beside_transformers_gives_equal_loss_and_gradients(name: str) -> None:
    model = with_noise(DECODERS[name])
    rows = torch.randint(0, 97, (3, 41), generator=torch.Generator().manual_seed(0))
    tokens, targets = rows[:, :-1], rows[:, 1:].clone()
    targets[1, 20:] = -100
    theirs = reference(model)
    logits = theirs(tokens).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
    expected.backward()
    loss = model.loss_sum(tokens, targets)
    loss.backward()
    assert float(loss) == pytest.approx(float(expected), rel=TOLERANCE)
    gradients = dict(theirs.named_parameters())
    for key, parameter in model.named_parameters():
        wanted, got = gradients[key].grad, parameter.grad
        assert wanted is not None
        assert got is not None
        assert torch.allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE * float(wanted.abs().max())), key


@pytest.mark.parametrize("name", DECODERS)
def test_hugging_face_config_through_transformers_comes_back_equal(name: str) -> None:
    config = DECODERS[name]
    written = transformers.AutoConfig.for_model(**to_hugging_face_config(config)).to_dict()
    back = from_hugging_face_config(written)
    assert back == from_hugging_face_config(to_hugging_face_config(config))
    assert (back.layers, back.heads, back.num_kv_heads, back.rope_scaling) == (
        config.layers,
        config.heads,
        config.num_kv_heads,
        config.rope_scaling,
    )


def test_model_from_a_transformers_checkpoint_computes_its_logits() -> None:
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = load_model(from_hugging_face_config(config.to_dict()), theirs.state_dict(), CPU)
    tokens = torch.arange(30).view(2, 15)
    assert torch.allclose(ours(tokens), theirs(tokens).logits, rtol=TOLERANCE, atol=TOLERANCE)


def test_tied_model_with_a_stored_output_layer_leaves_it_out() -> None:
    model = with_noise(BASE)
    copy = build(BASE, CPU)
    load_weights(copy, {**model.state_dict(), "lm_head.weight": model.output_weight})
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), copy.parameters(), strict=True))
