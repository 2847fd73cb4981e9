"""Optimisers against short independent references, and their state by name."""

import pytest
import torch
from torch import Tensor

from marin.base.errors import CheckpointError
from marin.model.config import Decoder
from marin.model.init import build, initialise
from marin.train.config import AdamW, Muon
from marin.train.gradients import Gradients
from marin.train.optimizer import ParameterUpdate, orthogonalised

MUON = Muon(lr=0.02, others=AdamW(lr=0.01))
ADAM = AdamW(lr=0.01)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def model_parameters() -> dict[str, Tensor]:
    model = build(Decoder(layers=2, width=16, heads=2, vocab_size=20), torch.device("cpu"))
    initialise(model, 0)
    return dict(model.named_parameters())


def give_gradients(parameters: dict[str, Tensor], seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        parameter.grad = torch.empty_like(parameter).normal_(generator=noise)


def test_adamw_over_five_steps_equals_the_formula() -> None:
    parameters = model_parameters()
    config = AdamW(lr=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3)
    update = ParameterUpdate(parameters, config)
    expected = {name: p.detach().double() for name, p in parameters.items()}
    first = {name: torch.zeros_like(p) for name, p in expected.items()}
    second = {name: torch.zeros_like(p) for name, p in expected.items()}
    for step in range(1, 6):
        give_gradients(parameters, step)
        update.step(factor=1 / step)
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            gradient, lr = parameter.grad.double(), 0.01 / step
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.9 * second[name] + 0.1 * gradient**2
            decay = 0.3 if parameter.ndim > 1 else 0.0
            change = (first[name] / (1 - 0.8**step)) / ((second[name] / (1 - 0.9**step)).sqrt() + 1e-6)
            expected[name] = expected[name] * (1 - lr * decay) - lr * change
    for name, parameter in parameters.items():
        assert torch.allclose(parameter.double(), expected[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 40), (2, 40, 16)])
def test_orthogonalised_matrices_keep_directions_and_level_singular_values(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    result = orthogonalised(matrices)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = torch.linalg.svdvals(result)
    assert float(values.min()) > 0.3
    assert float(values.max()) < 1.3
    overlap = (result * (left @ right)).sum(dim=(1, 2)) / (result.norm(dim=(1, 2)) * min(shape[1:]) ** 0.5)
    assert float(overlap.min()) > 0.95


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("decay_embeddings", [True, False])
def test_weight_decay_pulls_at_matrices_and_at_embeddings_by_option(family: str, decay_embeddings: bool) -> None:
    config = Decoder(layers=1, width=16, heads=2, vocab_size=20, context=8, tied=False, family=family)
    model = build(config, torch.device("cpu"))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    ParameterUpdate(parameters, AdamW(lr=0.1, weight_decay=0.5, decay_embeddings=decay_embeddings)).step(1.0)
    pulled = {name for name, parameter in parameters.items() if bool((parameter < 1).all())}
    still = {name for name, parameter in parameters.items() if bool((parameter == 1).all())}
    assert pulled | still == parameters.keys()
    embeddings = {name for name in parameters if "embed" in name or ".wte." in name or ".wpe." in name}
    matrices = {name for name, parameter in parameters.items() if parameter.ndim == 2}
    assert pulled == (matrices if decay_embeddings else matrices - embeddings)
    assert "lm_head.weight" in pulled


def test_muon_updates_matrices_of_layers_only_and_at_adamw_size() -> None:
    parameters = model_parameters()
    update = ParameterUpdate(parameters, MUON)
    names = update.state().keys()
    assert "momentum.model.layers.1.self_attn.k_proj.weight" in names
    assert "exp_avg.model.embed_tokens.weight" in names
    assert "exp_avg.model.layers.0.input_layernorm.weight" in names
    assert not {"momentum.model.embed_tokens.weight", "exp_avg.model.layers.0.mlp.up_proj.weight"} & names
    before = {name: p.detach().clone() for name, p in parameters.items()}
    give_gradients(parameters, 1)
    update.step(1.0)
    moved = parameters["model.layers.0.mlp.up_proj.weight"] - before["model.layers.0.mlp.up_proj.weight"]
    assert float(moved.detach().square().mean().sqrt()) == pytest.approx(0.2 * 0.02, rel=0.3)


@pytest.mark.parametrize("config", [ADAM, MUON], ids=["adamw", "muon"])
def test_optimizer_state_saved_and_loaded_continues_bit_by_bit(config: AdamW | Muon) -> None:
    parameters = model_parameters()
    update = ParameterUpdate(parameters, config)
    for step in range(3):
        give_gradients(parameters, step)
        update.step(1.0)
    saved = {name: tensor.clone() for name, tensor in update.state().items()}
    copies = {name: torch.nn.Parameter(p.detach().clone()) for name, p in parameters.items()}
    resumed = ParameterUpdate(copies, config)
    resumed.load(saved, steps=3)
    for step in range(3, 6):
        for each, members in ((update, parameters), (resumed, copies)):
            give_gradients(members, step)
            each.step(0.5)
    assert all(torch.equal(parameters[name], copies[name]) for name in parameters)


def test_optimizer_state_of_another_optimizer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="another model or optimiser"):
        ParameterUpdate(model_parameters(), MUON).load(ParameterUpdate(model_parameters(), ADAM).state(), steps=1)


def test_gradients_over_the_limit_are_scaled_to_it_and_the_norm_is_that_before() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]
    gradients = Gradients(parameters)
    (parameters[0].sum() * 3 + parameters[1].sum() * 4).backward()
    assert float(gradients.clip(1.0)) == pytest.approx((3 * 9 + 4 * 16) ** 0.5)
    clipped = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    assert float(clipped.norm()) == pytest.approx(1.0, rel=1e-5)
    assert torch.equal(clipped, gradients.summed[:-1])
    assert float(gradients.clip(None)) == pytest.approx(1.0, rel=1e-5)
    gradients.clear()
    assert not gradients.summed.any()
