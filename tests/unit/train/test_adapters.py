"""Low-rank adapters: the sum W + scale B A and its gradient, what stays frozen, dropout, and peft's form of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import fs
from marin.base.errors import CheckpointError, ConfigurationError
from marin.data.loader import Batch
from marin.model.config import Decoder
from marin.model.decoder import LanguageModel
from marin.model.hub import load_model
from marin.model.init import build, initialise
from marin.model.weights import read_tensors
from marin.train.adapters import Adapters, kept
from marin.train.config import AdamW, Constant, Muon, TrainConfig
from marin.train.entry import train_source
from marin.train.launched import LaunchedMember
from marin.train.lora import Lora
from marin.train.memory import estimate
from marin.train.start import Start
from marin.train.state import TrainingState

TOLERANCE = 1e-6
"""Between merged and unmerged, and between gradients: fp32 sums in another order."""
CPU = torch.device("cpu")
SHAPES = {
    "llama": Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=60, context=16, tied=False),
    "qwen2": Decoder(layers=2, width=32, heads=4, vocab_size=60, context=16, qkv_bias=True),
    "gpt2": Decoder(family="gpt2", layers=2, width=32, heads=4, vocab_size=60, context=16),
}
LORA = Lora(rank=3, alpha=6)
CONFIG = TrainConfig(
    model=SHAPES["llama"],
    optimizer=AdamW(lr=0.01),
    schedule=Constant(),
    tokens=8 * 4 * 16,
    batch=4,
    seed=5,
    lora=LORA,
    checkpoint_steps=3,
)


class Rows:
    """Numbered random sequences."""

    digest = "rows"
    rows = np.random.default_rng(0).integers(0, 60, (20, 17))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray) -> Batch:
        return Batch(self.rows[indices][:, :-1].copy(), self.rows[indices][:, 1:].copy())


TOKENS, TARGETS = map(torch.from_numpy, Rows().batch(np.arange(6)))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def base(shape: Decoder) -> LanguageModel:
    model = build(shape, CPU)
    initialise(model, 1)
    return model


def adapted(shape: Decoder, lora: Lora = LORA, *, spread: float = 0.1) -> tuple[LanguageModel, Adapters]:
    """Return a model whose adapters do something, as B is no longer zero."""
    model = base(shape)
    adapters = Adapters(model, lora, seed=2)
    adapters.initialise()
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in adapters.parameters().items():
            if name.endswith("lora_B"):
                parameter.normal_(0, spread, generator=noise)
    return model, adapters


def start_of(model: LanguageModel) -> Start:
    return Start("base", {name: p.detach().clone() for name, p in model.named_parameters()})


def run(folder: Path, config: TrainConfig, **options: Any) -> dict[str, bytes]:
    train_source(
        LaunchedMember(),
        config=config,
        source=Rows(),
        checkpoints=str(folder / "checkpoints"),
        output=fs.FolderOutput(str(folder / "output")),
        start=start_of(base(config.model)),
        **options,
    )
    root = folder / "output"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.*"))}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_adapters_that_were_not_trained_leave_every_logit_as_it_was(shape: Decoder) -> None:
    plain, (model, adapters) = base(shape), adapted(shape, spread=0)
    assert len(adapters.parameters()) > 0
    assert torch.equal(model(TOKENS), plain(TOKENS))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_adapters_have_the_gradients_of_the_sum_of_weight_and_product(shape: Decoder) -> None:
    """Against autograd of W + scale B A put in the weight's place, which knows nothing of hooks."""
    model, adapters = adapted(shape)
    model.loss_sum(TOKENS, TARGETS).backward()
    reference = base(shape)
    leaves = {name: p.detach().clone().requires_grad_() for name, p in adapters.parameters().items()}
    weights = dict(reference.named_parameters())
    for name in {name.rpartition(".")[0] for name in leaves}:
        change = LORA.scale * leaves[f"{name}.lora_B"] @ leaves[f"{name}.lora_A"]
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + (change.T if shape.family == "gpt2" else change)
    logits = torch.func.functional_call(reference, weights, (TOKENS,))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), reduction="sum").backward()
    largest = max(float(leaf.grad.abs().max()) for leaf in leaves.values())
    for name, parameter in adapters.parameters().items():
        assert float((parameter.grad - leaves[name].grad).abs().max()) <= TOLERANCE * largest, name
    assert all(p.grad is None for name, p in model.named_parameters() if ".lora_" not in name)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_merged_weights_have_the_logits_of_the_model_with_adapters(shape: Decoder) -> None:
    model, adapters = adapted(shape)
    merged = load_model(shape, adapters.merged(adapters.parameters()), CPU)
    with torch.no_grad():
        together, apart, without = merged(TOKENS), model(TOKENS), base(shape)(TOKENS)
    assert float((together - apart).abs().max()) <= TOLERANCE * float(apart.abs().max())
    assert float((together - without).abs().max()) > 1e-3 * float(apart.abs().max())


@pytest.mark.parametrize(
    ("shape", "targets", "message"),
    [
        (SHAPES["gpt2"], ("q_proj",), "choose among c_attn, c_fc, c_proj"),
        (SHAPES["llama"], ("c_attn",), "choose among down_proj"),
    ],
)
def test_adapter_of_a_matrix_that_the_model_lacks_is_refused(shape: Decoder, targets: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Adapters(base(shape), Lora(rank=1, alpha=1, targets=targets), seed=0)
    assert message in caught.value.hint


def test_adapters_of_chosen_matrices_are_those_alone() -> None:
    _, adapters = adapted(SHAPES["llama"], Lora(rank=1, alpha=1, targets=["q_proj", "v_proj"]))
    kinds = {name.split(".")[-2] for name in adapters.parameters()}
    assert kinds == {"q_proj", "v_proj"}
    assert len(adapters.parameters()) == 2 * 2 * 2


def test_checkpoint_of_a_run_with_adapters_holds_nothing_else_and_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", CONFIG)
    broken = tmp_path / "broken"

    class Killed(LaunchedMember):
        def beat(self, phase: str, step: int) -> None:
            if step == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_source(
            Killed(),
            config=CONFIG,
            source=Rows(),
            checkpoints=str(broken / "checkpoints"),
            output=fs.FolderOutput(str(broken / "output")),
            start=start_of(base(CONFIG.model)),
        )
    (saved,) = (broken / "checkpoints").glob("step-*/model.safetensors")
    held = read_tensors(saved.read_bytes(), where="")
    assert held.keys() == adapted(CONFIG.model)[1].parameters().keys()
    assert json.loads((saved.parent / "state.json").read_text())["order"]["init"] == "base"
    assert run(broken, CONFIG) == whole
    assert sum(t.numel() for t in held.values()) == json.loads(whole["training.json"])["trained_parameters"]


def test_checkpoint_with_adapters_of_another_rank_is_refused(tmp_path: Path) -> None:
    _, adapters = adapted(CONFIG.model)
    with pytest.raises(CheckpointError, match="another model or rank"):
        adapters.load(adapted(CONFIG.model, Lora(rank=2, alpha=1))[1].parameters())


def test_result_of_a_run_is_the_base_with_its_adapter_merged(tmp_path: Path) -> None:
    files = run(tmp_path, CONFIG)
    model = base(CONFIG.model)
    adapters = Adapters(model, LORA, seed=0)
    stored = read_tensors(files["adapter/adapter_model.safetensors"], where="")
    adapters.load({name.removeprefix("base_model.model.").removesuffix(".weight"): t for name, t in stored.items()})
    merged = read_tensors(files["model.safetensors"], where="")
    assert all(torch.equal(tensor, merged[name]) for name, tensor in adapters.merged(adapters.parameters()).items())
    frozen = [name for name in merged if "norm" in name or "embed" in name or "lm_head" in name]
    assert all(torch.equal(merged[name], start_of(base(CONFIG.model)).weights[name]) for name in frozen)
    assert (
        json.loads(files["training.json"])["curve"][-1]["loss"] < json.loads(files["training.json"])["curve"][0]["loss"]
    )


def test_average_of_adapters_is_what_is_merged(tmp_path: Path) -> None:
    plain, averaged = run(tmp_path / "a", CONFIG), run(tmp_path / "b", CONFIG.model_copy(update={"ema": 0.5}))
    assert plain["adapter/adapter_model.safetensors"] != averaged["adapter/adapter_model.safetensors"]
    assert plain["adapter/adapter_config.json"] == averaged["adapter/adapter_config.json"]


@settings(max_examples=20, deadline=None)
@given(dropout=st.floats(0.05, 0.9), first=st.integers(0, 2**40), salt=st.integers(-(2**63), 2**63 - 1))
def test_dropout_keeps_its_share_by_stream_position_alone(dropout: float, first: int, salt: int) -> None:
    samples = torch.arange(first, first + 6)
    whole = kept(samples, torch.zeros(6, 40, 50), salt=salt, dropout=dropout)
    assert torch.equal(whole[2:4], kept(samples[2:4], torch.zeros(2, 40, 50), salt=salt, dropout=dropout))
    assert abs(float(whole.float().mean()) - (1 - dropout)) < 0.02
    assert all(not torch.equal(whole[0], whole[row]) for row in range(1, 6))


def test_dropout_is_off_where_no_samples_are_drawn() -> None:
    plain, (dropping, adapters) = (
        adapted(SHAPES["llama"])[0],
        adapted(SHAPES["llama"], Lora(rank=3, alpha=6, dropout=0.5)),
    )
    assert torch.equal(dropping(TOKENS), plain(TOKENS))
    adapters.draw(torch.arange(6))
    assert not torch.equal(dropping(TOKENS), plain(TOKENS))


def test_dropout_does_not_depend_on_micro_batches_or_recomputing(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"lora": Lora(rank=3, alpha=6, dropout=0.5)})
    whole = run(tmp_path / "whole", config)
    parts = run(tmp_path / "parts", config.model_copy(update={"micro_batch": 1}))
    again = run(tmp_path / "again", config.model_copy(update={"recompute": "block"}))
    assert again["model.safetensors"] == whole["model.safetensors"]
    one, two = (read_tensors(files["model.safetensors"], where="") for files in (whole, parts))
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=2e-6) for name in one)
    none = run(tmp_path / "none", CONFIG)
    first = [json.loads(files["training.json"])["curve"][1]["loss"] for files in (whole, none)]
    assert first[0] != first[1]


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.01), Muon(lr=0.01, others=AdamW(lr=0.01))], ids=["adamw", "muon"])
@pytest.mark.parametrize("shape", [SHAPES["llama"], SHAPES["gpt2"]], ids=["llama", "gpt2"])
def test_memory_of_a_run_with_adapters_is_what_its_state_holds(shape: Decoder, optimizer: Any) -> None:
    config = CONFIG.model_copy(update={"model": shape, "optimizer": optimizer, "ema": 0.9})
    needed = estimate(config, world_size=1, device_type="cpu")
    state = TrainingState(config, Rows(), CPU, start_of(base(shape)))
    tensors = state.tensors()
    assert needed.parameters == sum(p.nbytes for p in state.model.parameters())
    assert needed.gradients == state.gradients.summed.nbytes
    assert needed.optimizer == sum(t.nbytes for t in tensors["optimizer"].values()) - 2 * state.losses.nbytes
    assert needed.average == sum(t.nbytes for t in tensors["ema"].values())
    whole = estimate(config.model_copy(update={"lora": None}), world_size=1, device_type="cpu")
    assert needed.lasting < whole.lasting / 2


def test_adapter_loads_into_peft_with_equal_logits(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is an extra: pip install 'marin[peft]'")
    transformers = pytest.importorskip("transformers")
    for name in ("llama", "gpt2"):
        config = CONFIG.model_copy(update={"model": SHAPES[name]})
        run(tmp_path / name, config)
        folder = tmp_path / name / "output"
        tuned = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        loaded = type(tuned)(tuned.config)
        loaded.load_state_dict(start_of(base(config.model)).weights, strict=False)
        with_adapter = peft.PeftModel.from_pretrained(loaded.eval(), folder / "adapter").eval()
        with torch.no_grad():
            found, expected = with_adapter(TOKENS).logits, tuned(TOKENS).logits
        assert float((found - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())
        assert float((with_adapter.unload()(TOKENS).logits - expected).abs().max()) > 1e-3
