"""`Train.at_step`: the weights on the way, as kept or as trained again, as steps of their own."""

import json
import shutil
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
    Keep,
    Muon,
    Records,
    RollBack,
    Shuffle,
    Step,
    Tokenize,
    Train,
    TrainTokenizer,
)
from marin.base.errors import ConfigurationError, MarinError
from marin.graph.recipe import recipe_of
from marin.model.weights import read_tensors

TEXTS = tuple(f"the {number} of {number * 7 % 11} and then some more words, {number}" for number in range(40))
DOCUMENTS = Records(texts=TEXTS)
TOKENIZER = TrainTokenizer(documents=DOCUMENTS, vocab_size=280)
DATA = Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=TOKENIZER), context=16, seed=0)


def training(**options: Any) -> Train:
    plain = {"optimizer": AdamW(lr=0.01), "schedule": Constant(), "model": Decoder(layers=1, width=16, heads=2)}
    return Train(**{**plain, "data": DATA, "tokens": 9 * 4 * 16, "batch": 4, **options})


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def run(step: Step[Checkpoint], store: Path) -> Checkpoint:
    return marin.run(step, store=store, backend="inline")


def files(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {file.path: checkpoint.contents.reader.read(file) for file in checkpoint.contents.files}


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return read_tensors(files(checkpoint)["model.safetensors"], where="")


def metrics(step: Step[Checkpoint], store: Path) -> dict[str, Any]:
    (manifest,) = store.glob(f"artifacts/{step.step_name()}/*/manifest.json")
    return json.loads(manifest.read_text())["metrics"]


def test_step_that_was_kept_has_the_weights_of_a_training_that_ended_there(tmp_path: Path) -> None:
    kept = training(keep=Keep(at=(4,)))
    there = run(kept.at_step(4), tmp_path)
    ended = run(training(tokens=4 * 4 * 16), tmp_path / "other")
    assert all(torch.equal(weights(there)[name], tensor) for name, tensor in weights(ended).items())
    assert files(there).keys() == {"model.safetensors", "config.json", "tokenizer.json", "training.json"}
    record = json.loads(files(there)["training.json"])
    expected = json.loads(files(ended)["training.json"])
    assert record["steps"] == 4
    assert record["config"]["tokens"] == 9 * 4 * 16
    assert {**record, "config": 0} == {**expected, "config": 0}
    assert "trained_again" not in metrics(kept.at_step(4), tmp_path)


@pytest.mark.parametrize(
    ("optimizer", "kept_before"),
    [(AdamW(lr=0.01), ()), (Muon(lr=0.01, others=AdamW(lr=0.01)), (3,))],
    ids=["nothing kept", "an earlier one kept"],
)
def test_step_that_was_not_kept_is_trained_again_to_the_same_bits(
    tmp_path: Path, optimizer: AdamW | Muon, kept_before: tuple[int, ...]
) -> None:
    options = {"optimizer": optimizer, "ema": 0.5, "keep_state": True}
    kept = run(training(**options, keep=Keep(every=5)).at_step(5), tmp_path / "kept")
    step = training(**options, keep=Keep(at=kept_before)).at_step(5)
    assert files(run(step, tmp_path / "again")) == files(kept)
    assert metrics(step, tmp_path / "again")["trained_again"] == 5 - sum(kept_before)


def test_step_after_the_checkpoints_are_gone_or_damaged_is_trained_again(tmp_path: Path) -> None:
    model = training(keep=Keep(every=3))
    digest = run(model.at_step(3), tmp_path).digest
    (folder,) = tmp_path.glob("artifacts/train/*/checkpoints")
    (damaged,) = folder.glob("step-00000006.*/model.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    run(model.at_step(6), tmp_path)
    assert not list(folder.glob("*/BAD.json"))
    shutil.rmtree(folder)
    shutil.rmtree(next(tmp_path.glob("artifacts/at-step/*/manifest.json")).parent)
    shutil.rmtree(next(tmp_path.glob("artifacts/at-step/*/manifest.json")).parent)
    assert run(model.at_step(3), tmp_path).digest == digest


def test_last_step_is_the_training_itself(tmp_path: Path) -> None:
    model = training()
    last = run(model.at_step(9), tmp_path)
    assert files(last) == files(marin.load(model, store=tmp_path))


def test_branch_can_carry_on_the_training_from_a_step(tmp_path: Path) -> None:
    stable = training(keep_state=True, keep=Keep(at=(5,)))
    branch = run(training(tokens=4 * 4 * 16, init=stable.at_step(5), carry="training"), tmp_path)
    whole = marin.load(stable, store=tmp_path)
    assert all(torch.equal(weights(branch)[name], tensor) for name, tensor in weights(whole).items())


def test_what_is_kept_changes_no_fingerprint_and_the_step_does() -> None:
    def fingerprint(step: Step[Any]) -> str:
        return recipe_of(step, fingerprint, ()).fingerprint

    assert fingerprint(training(keep=Keep(every=2, best=True)).at_step(4)) == fingerprint(training().at_step(4))
    assert fingerprint(training().at_step(4)) != fingerprint(training().at_step(5))
    assert fingerprint(training().at_step(4)) != fingerprint(training(seed=1).at_step(4))


def test_step_is_named_and_placed_as_its_training() -> None:
    step = training().named("tiny").on(cpus=2, ranks=2).at("somewhere").at_step(4)
    assert (step.placed.name, step.placed.url) == ("tiny/step-4", None)
    assert step.placed.resources.num_ranks == 2


def test_step_beyond_the_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match="there is no step 10: the training has 9 steps"):
        run(training().at_step(10), tmp_path)
    with pytest.raises(ConfigurationError, match="greater than or equal to 1"):
        training().at_step(0)


@pytest.mark.parametrize("wanted", [Keep(every=4), Keep(at=(3, 4))])
def test_step_between_those_to_which_a_run_rolls_back_is_refused(wanted: Keep) -> None:
    with pytest.raises(ConfigurationError, match="a checkpoint of step 4 is to be kept, but with RollBack"):
        training(nonfinite=RollBack(every=3), keep=wanted)
    with pytest.raises(ConfigurationError, match="a checkpoint of step 4"):
        training(nonfinite=RollBack(every=3), keep=Keep(every=6)).at_step(4)
