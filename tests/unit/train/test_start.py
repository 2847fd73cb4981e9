"""Training that starts from a checkpoint: weights alone or the training itself, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import marin
from marin import (
    AdamW,
    Checkpoint,
    Constant,
    Decoder,
    Export,
    LoadModel,
    Muon,
    Records,
    Shuffle,
    Step,
    Tokenize,
    Train,
    TrainTokenizer,
    WarmupStableDecay,
)
from marin.base.errors import ConfigurationError, MarinError
from marin.model.weights import read_tensors

TEXTS = tuple(f"the {number} of {number * 7 % 11} and then some more words, {number}" for number in range(40))
DOCUMENTS = Records(texts=TEXTS)
TOKENIZER = TrainTokenizer(documents=DOCUMENTS, vocab_size=280)
DATA = Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=TOKENIZER), context=16, seed=0)
MODEL = Decoder(layers=1, width=16, heads=2)
STEP_TOKENS = 4 * 16


def run_of(num_steps: int, **options: Any) -> Train:
    plain = {"optimizer": AdamW(lr=0.01), "schedule": Constant(), "data": DATA, "model": MODEL}
    return Train(**{**plain, "tokens": num_steps * STEP_TOKENS, "batch": 4, **options})


def run(step: Step[Checkpoint], store: Path) -> Checkpoint:
    torch.set_num_threads(1)
    return marin.run(step, store=store, backend="inline")


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return read_tensors(checkpoint.contents.reader.read(checkpoint.file("model.safetensors")), where="")


def record(checkpoint: Checkpoint) -> dict[str, Any]:
    return json.loads(checkpoint.contents.reader.read(checkpoint.file("training.json")))


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.01), Muon(lr=0.01, others=AdamW(lr=0.01))], ids=["adamw", "muon"])
@pytest.mark.parametrize("ema", [None, 0.5])
def test_training_carried_on_from_a_checkpoint_is_the_training_that_never_stopped(
    tmp_path: Path, optimizer: AdamW | Muon, ema: float | None
) -> None:
    first = run_of(5, optimizer=optimizer, keep_state=True, ema=ema)
    branch = run(run_of(4, optimizer=optimizer, init=first, carry="training"), tmp_path)
    whole = run(run_of(9, optimizer=optimizer), tmp_path)
    assert all(torch.equal(weights(branch)[name], tensor) for name, tensor in weights(whole).items())
    assert record(branch)["order"]["first"] == 5 * 4
    losses = [[point["loss"] for point in record(each)["curve"]] for each in (branch, whole)]
    assert losses[0] == losses[1][5:]


def test_decay_that_branches_off_a_stable_run_is_the_decay_of_one_run(tmp_path: Path) -> None:
    stable = run_of(6, keep_state=True)
    branch = run(run_of(4, init=stable, carry="training", schedule=WarmupStableDecay(decay=1.0)), tmp_path)
    whole = run(run_of(10, schedule=WarmupStableDecay(decay=0.4)), tmp_path)
    assert all(torch.equal(weights(branch)[name], tensor) for name, tensor in weights(whole).items())


def test_training_carried_on_with_other_data_begins_at_their_start(tmp_path: Path) -> None:
    other = DATA.model_copy(update={"seed": 1})
    branch = run(run_of(2, data=other, init=run_of(3, keep_state=True), carry="training"), tmp_path)
    assert record(branch)["order"]["first"] == 0


def test_training_from_weights_alone_begins_with_their_loss_and_a_new_optimizer(tmp_path: Path) -> None:
    first = run_of(30)
    continued = run(run_of(3, init=first), tmp_path)
    start = record(run(first, tmp_path))
    assert record(continued)["curve"][0]["loss"] < start["curve"][0]["loss"] - 0.5
    assert record(continued)["order"]["init"] == marin.load(first, store=tmp_path).digest
    assert record(continued)["order"]["first"] == 0


def test_training_continues_a_model_loaded_from_its_export(tmp_path: Path) -> None:
    first = run_of(4)
    exported = marin.run(Export(checkpoint=first), store=tmp_path, backend="inline")
    (tmp_path / "folder").mkdir()
    for file in exported.contents.files:
        (tmp_path / "folder" / file.path).write_bytes(exported.contents.reader.read(file))
    direct = run(run_of(3, init=first), tmp_path)
    through = run(run_of(3, init=LoadModel(url=str(tmp_path / "folder"))), tmp_path)
    assert all(torch.equal(weights(direct)[name], tensor) for name, tensor in weights(through).items())


@pytest.mark.parametrize(
    ("change", "message", "where"),
    [
        ({"model": Decoder(layers=2, width=16, heads=2)}, "`layers` 1, the model to train has 2", "Train.model.layers"),
        ({"model": Decoder(layers=1, width=16, heads=2, tied=False)}, "`tied` True, the model", "Train.model.tied"),
        ({"model": Decoder(layers=1, width=16, heads=2, rope_theta=5e5)}, "`rope_theta`", "Train.model.rope_theta"),
        ({"model": Decoder(layers=1, width=16, heads=2, family="gpt2")}, "`family` 'llama'", "Train.model.family"),
        ({"model": Decoder(layers=1, width=16, heads=2, vocab_size=400)}, "`vocab_size` 280", "Train.model.vocab_size"),
        ({"data": DATA.model_copy(update={"context": 32})}, "checkpoint has positions for 16", "Train.init"),
        ({"carry": "training"}, "holds no optimiser state", ""),
    ],
)
def test_checkpoint_of_another_model_is_refused_with_the_field_and_both_values(
    tmp_path: Path, change: dict[str, Any], message: str, where: str
) -> None:
    with pytest.raises(MarinError, match=message) as caught:
        run(run_of(2, init=run_of(1), **change), tmp_path)
    assert where in caught.value.where


def test_data_of_another_vocabulary_than_the_checkpoints_are_refused(tmp_path: Path) -> None:
    other = TOKENIZER.model_copy(update={"eos": "<|stop|>"})
    data = Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=other), context=16, seed=0)
    with pytest.raises(MarinError, match="another vocabulary than the initial checkpoint's: 2 tokens differ"):
        run(run_of(2, data=data, init=run_of(1)), tmp_path)


def test_carrying_on_without_a_checkpoint_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="no initial checkpoint whose training"):
        run_of(2, carry="training")


def test_model_given_with_defaults_spelled_out_is_the_same_model(tmp_path: Path) -> None:
    spelled = Decoder(layers=1, width=16, heads=2, kv_heads=2, head_width=8, mlp_width=64, init_std=0.5)
    assert record(run(run_of(1, init=run_of(1), model=spelled), tmp_path))["steps"] == 1


def test_train_without_new_options_has_the_recipe_that_it_had() -> None:
    from marin.graph.recipe import recipe_of

    config = recipe_of(run_of(2), lambda step: "parent", ()).record["config"]
    assert config.keys() == {"data", "model", "optimizer", "tokens", "batch", "schedule", "seed", "clip"}
    assert recipe_of(run_of(2), lambda step: "parent", ()).fingerprint == GOLDEN


GOLDEN = "fca71f6dc69846fd3ee34123bfc1add6b3c9bfac036498fdb6bb736cc670c33c"
