"""What a training will hold in memory, and the two ways to hold less: what they change, and what not a bit of."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from marin import fs
from marin.base.errors import ConfigurationError
from marin.data.loader import Batch
from marin.model.config import Decoder
from marin.model.init import build, initialise
from marin.model.weights import read_tensors
from marin.train.adapters import Adapters
from marin.train.config import AdamW, Constant, Muon, TrainConfig
from marin.train.entry import train_source
from marin.train.launched import LaunchedMember
from marin.train.lora import Lora
from marin.train.memory import Memory, check_fits, estimate
from marin.train.precision import autocast
from marin.train.state import TrainingState

CPU = torch.device("cpu")
LLAMA = Decoder(layers=5, width=32, heads=4, kv_heads=2, vocab_size=60, context=16)
GPT2 = Decoder(family="gpt2", layers=5, width=32, heads=4, vocab_size=60, context=16)
CONFIG = TrainConfig(
    model=LLAMA,
    optimizer=AdamW(lr=0.003),
    schedule=Constant(),
    tokens=8 * 4 * 16,
    batch=4,
    seed=5,
    checkpoint_steps=3,
)
MUON = Muon(lr=0.003, others=AdamW(lr=0.003))


class Rows:
    """Numbered random sequences."""

    digest = "rows"
    rows = np.random.default_rng(0).integers(0, 60, (20, 17))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray) -> Batch:
        return Batch(self.rows[indices][:, :-1].copy(), self.rows[indices][:, 1:].copy())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def with_(**changes: object) -> TrainConfig:
    return CONFIG.model_copy(update=changes)


def kept_by_a_step(config: TrainConfig, rows: int) -> int:
    """Return the bytes that autograd keeps of a whole pass, loss included, for so many sequences."""
    model = build(config.model, CPU)
    initialise(model, 0)
    if config.recompute == "block":
        model.recompute_layers()
    if config.lora:
        adapters = Adapters(model, config.lora, seed=0)
        adapters.initialise()
        adapters.draw(torch.arange(rows))
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.from_numpy(Rows.rows[:rows, :-1].copy())
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), autocast(config.precision, CPU):
        model.loss_sum(tokens, tokens, torch.zeros_like(tokens) if config.document_mask else None)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


@pytest.mark.parametrize("change", [{}, {"optimizer": MUON}, {"ema": 0.9}, {"model": GPT2, "optimizer": MUON}])
def test_estimate_of_what_lasts_is_what_a_state_holds(change: dict[str, object]) -> None:
    config = with_(**change)
    needed = estimate(config, world_size=1, device_type="cpu")
    state = TrainingState(config, Rows(), CPU)
    tensors = state.tensors()
    curves = state.losses.nbytes + state.norms.nbytes
    assert needed.parameters == sum(tensor.nbytes for tensor in tensors["model"].values())
    assert needed.gradients == state.gradients.summed.nbytes
    assert needed.optimizer == sum(tensor.nbytes for tensor in tensors["optimizer"].values()) - curves
    assert needed.average == sum(tensor.nbytes for tensor in tensors.get("ema", {}).values())


@pytest.mark.parametrize("model", [LLAMA, GPT2, LLAMA.model_copy(update={"qk_norm": True, "layers": 9})])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"precision": "bfloat16"},
        {"micro_batch": 2},
        {"document_mask": True},
        {"lora": Lora(rank=4, alpha=4)},
        {"lora": Lora(rank=4, alpha=4, dropout=0.1)},
    ],
    ids=str,
)
def test_estimate_of_activations_is_what_a_pass_keeps(model: Decoder, change: dict[str, object]) -> None:
    config = with_(model=model, **change)
    needed = estimate(config, world_size=1, device_type="cpu")
    # The estimate also has one chunk of logits, and the weight cast for it, which stand in memory and are not kept.
    width = 2 if config.precision == "bfloat16" else 4
    rows = config.micro_batch or 4
    chunk = rows * 16 * 60 * (4 + width) + (60 * 32 * width if width < 4 else 0)
    assert needed.activations - chunk == pytest.approx(kept_by_a_step(config, rows), rel=0.02)


def test_estimate_shrinks_with_ranks_micro_batches_and_recomputing() -> None:
    plain = estimate(CONFIG, world_size=1, device_type="cpu")
    assert estimate(with_(micro_batch=1), world_size=1, device_type="cpu") == estimate(
        CONFIG, world_size=4, device_type="cpu"
    )
    assert estimate(CONFIG, world_size=4, device_type="cpu").activations < plain.activations / 2
    assert estimate(with_(recompute="block"), world_size=1, device_type="cpu").activations < plain.activations / 2
    assert estimate(CONFIG, world_size=1, device_type="cuda") == estimate(
        with_(precision="bfloat16"), world_size=1, device_type="cpu"
    )
    assert kept_by_a_step(with_(recompute="block"), 4) < kept_by_a_step(CONFIG, 4) / 3


def test_model_beyond_the_memory_is_refused_before_it_is_made() -> None:
    needed = Memory(parameters=4 * 10**9, gradients=4 * 10**9, optimizer=8 * 10**9, average=0, activations=10**12)
    check_fits(needed, 16 * 10**9, where="cuda:0")
    with pytest.raises(ConfigurationError, match="do not fit into") as caught:
        check_fits(needed, 15 * 10**9, where="cuda:0")
    assert caught.value.where == "cuda:0"


def train(folder: Path, config: TrainConfig) -> dict[str, bytes]:
    output = fs.FolderOutput(str(folder / "output"))
    train_source(LaunchedMember(), config=config, source=Rows(), checkpoints=str(folder / "checkpoints"), output=output)
    return {path.name: path.read_bytes() for path in sorted((folder / "output").iterdir())}


@pytest.mark.parametrize("change", [{}, {"model": GPT2, "precision": "bfloat16"}], ids=["llama", "gpt2-bf16"])
def test_run_that_computes_blocks_again_is_the_run_that_keeps_them(tmp_path: Path, change: dict[str, object]) -> None:
    assert train(tmp_path / "again", with_(recompute="block", **change)) == train(tmp_path / "kept", with_(**change))


@pytest.mark.parametrize("model", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_run_in_bfloat16_keeps_weights_in_fp32_and_learns_nearly_alike(tmp_path: Path, model: Decoder) -> None:
    runs = {name: train(tmp_path / name, with_(model=model, precision=name)) for name in ("float32", "bfloat16")}
    plain, low = (json.loads(files["training.json"]) for files in runs.values())
    losses = [[point["loss"] for point in each["curve"]] for each in (plain, low)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    assert low["config"]["precision"] == "bfloat16"
    for tensor in read_tensors(runs["bfloat16"]["model.safetensors"], where="").values():
        assert tensor.dtype == torch.float32
        assert not torch.equal(tensor, tensor.bfloat16().float()) or tensor.ndim == 1


def test_run_without_a_precision_is_the_one_in_fp32_on_the_cpu(tmp_path: Path) -> None:
    plain, auto = train(tmp_path / "plain", with_(precision="float32")), train(tmp_path / "auto", CONFIG)
    assert plain["model.safetensors"] == auto["model.safetensors"]
    assert "precision" not in json.loads(auto["training.json"])["config"]
