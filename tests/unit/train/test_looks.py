"""What is looked at between steps: when a run ends early, the average in the weights' place, and samples of text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors

import marin
from marin import AdamW, Constant, Decoder, EarlyStop, Records, Shuffle, Tokenize, Train, TrainTokenizer, fs
from marin.base.errors import ConfigurationError, MarinError
from marin.data.loader import Batch
from marin.graph.recipe import recipe_of
from marin.model.hub import load_model
from marin.model.init import build, initialise
from marin.model.weights import read_tensors
from marin.train.config import TrainConfig
from marin.train.early_stop import Look, reason_to_stop
from marin.train.entry import train_source
from marin.train.launched import LaunchedMember
from marin.train.looks import Watched
from marin.train.samples import Speaker
from marin.train.validation import HeldOut

CPU = torch.device("cpu")
CONFIG = TrainConfig(
    model=Decoder(layers=1, width=16, heads=2, vocab_size=40, context=16),
    optimizer=AdamW(lr=0.01),
    schedule=Constant(),
    tokens=24 * 4 * 16,
    batch=4,
    seed=5,
    checkpoint_steps=5,
    validate_every=7,
)


class Rows:
    """Numbered random sequences."""

    def __init__(self, seed: int) -> None:
        self.rows = np.random.default_rng(seed).integers(0, 40, (20, 17))
        self.digest = f"rows {seed}"

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray) -> Batch:
        return Batch(self.rows[indices][:, :-1].copy(), self.rows[indices][:, 1:].copy())


class Heard(LaunchedMember):
    """Keeps metrics and samples; dies where it is told to."""

    def __init__(self, die_in: tuple[str, int] | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "metrics", [])
        object.__setattr__(self, "samples", [])
        object.__setattr__(self, "die_in", die_in)

    def beat(self, phase: str, step: int) -> None:
        if (phase, step) == self.die_in:
            raise KeyboardInterrupt

    def metric(self, **values: float) -> None:
        self.metrics.append(values)

    def sample(self, **values: Any) -> None:
        self.samples.append(values)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(folder: Path, config: TrainConfig, watched: Watched | None = None, member: Heard | None = None) -> Any:
    member = member or Heard()
    train_source(
        member,
        config=config,
        source=Rows(0),
        checkpoints=str(folder / "checkpoints"),
        output=fs.FolderOutput(str(folder / "output")),
        watched=watched,
    )
    return {path.name: path.read_bytes() for path in sorted((folder / "output").iterdir())}, member


def stopping(**options: Any) -> TrainConfig:
    return CONFIG.model_copy(update={"stop": EarlyStop(**options)})


def record(files: dict[str, bytes]) -> dict[str, Any]:
    return json.loads(files["training.json"])


LOSSES = st.lists(st.one_of(st.none(), st.floats(0.01, 9)), max_size=12)


@given(losses=LOSSES, patience=st.integers(1, 4), min_delta=st.floats(0, 1))
def test_patience_ends_a_run_after_so_many_looks_that_did_not_improve_on_the_best(
    losses: list[float | None], patience: int, min_delta: float
) -> None:
    stop = EarlyStop(every=1, patience=patience, min_delta=min_delta)
    seen = [Look(step, loss) for step, loss in enumerate(losses, start=1)]
    improved = [0]
    best = float("inf")
    for look in seen:
        if look.loss is not None and look.loss < best - min_delta:
            best = look.loss
            improved.append(look.step)
    assert (reason_to_stop(stop, seen) is not None) == (len(seen) - improved[-1] >= patience)


@pytest.mark.parametrize(("losses", "ends"), [([], False), ([2.0], False), ([2.0, 1.5], True), ([None], False)])
def test_target_ends_a_run_once_a_loss_is_as_low(losses: list[float | None], ends: bool) -> None:
    looks = [Look(step, loss) for step, loss in enumerate(losses)]
    assert (reason_to_stop(EarlyStop(every=1, target=1.5), looks) is not None) is ends


def test_run_that_ends_early_is_the_beginning_of_the_one_that_does_not(tmp_path: Path) -> None:
    whole, _ = train(tmp_path / "whole", CONFIG)
    losses = [point["loss"] for point in record(whole)["curve"]]
    target = sum(losses[12:16]) / 4
    files, _ = train(tmp_path / "early", stopping(every=4, metric="training", target=target + 1e-6))
    found = record(files)
    assert found["steps"] == 16
    assert found["curve"] == record(whole)["curve"][:16]
    assert [look["step"] for look in found["stop"]["looks"]] == [4, 8, 12, 16]
    assert "reached the target" in found["stop"]["reason"]
    never, _ = train(tmp_path / "never", stopping(every=4, metric="training", target=0.001))
    assert never["model.safetensors"] == whole["model.safetensors"]
    assert record(never)["stop"]["reason"] is None


@pytest.mark.parametrize("die_in", [("train", 11), ("write", 12)])
def test_run_that_was_killed_ends_where_it_would_have(tmp_path: Path, die_in: tuple[str, int]) -> None:
    """Once in the middle, with looks in the checkpoint; once after the last checkpoint, before the result."""
    config, watched = stopping(every=3, patience=3, sequences=6), Watched(stop_data=HeldOut(Rows(1), None))
    whole, member = train(tmp_path / "whole", config, watched)
    stops = [values["stop_loss"] for values in member.metrics if "stop_loss" in values]
    assert record(whole)["steps"] == 12, stops
    assert [look["loss"] for look in record(whole)["stop"]["looks"]] == stops
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", config, watched, Heard(die_in))
    again, _ = train(tmp_path / "killed", config, watched)
    assert again == whole


def test_validation_looks_at_the_average_that_the_run_leaves(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"ema": 0.9})
    plain, _ = train(tmp_path / "plain", config)
    looking, member = train(tmp_path / "looking", config, Watched(held_out=HeldOut(Rows(1), None)))
    assert looking == plain
    model = load_model(config.model, read_tensors(plain["model.safetensors"], where=""), CPU)
    tokens, targets = map(torch.from_numpy, Rows(1).batch(np.arange(20)))
    found = [values["val_loss"] for values in member.metrics if "val_loss" in values]
    assert found[-1] == pytest.approx(float(model.token_losses(tokens, targets).double().mean()), rel=1e-6)
    _, member = train(tmp_path / "without", CONFIG, Watched(held_out=HeldOut(Rows(1), None)))
    assert abs([v["val_loss"] for v in member.metrics if "val_loss" in v][-1] - found[-1]) > 1e-3


def speaker(**options: Any) -> Speaker:
    words = {f"w{number}": number for number in range(40)}
    plain = {"prompts": ["w1w2", "w3", ""], "max_tokens": 5, "begins": [0], "ends": [39]}
    return Speaker(Tokenizer(models.WordLevel(words, "w0")), **{**plain, **options})


def test_samples_are_the_likeliest_tokens_and_change_nothing_of_the_run(tmp_path: Path) -> None:
    plain, _ = train(tmp_path / "plain", CONFIG)
    config = CONFIG.model_copy(update={"prompts": ("w0",), "sample_every": 10})
    files, member = train(tmp_path / "looking", config, Watched(speaker=speaker(prompts=["w3"])))
    assert files == plain
    assert [(sample["step"], sample["prompt"]) for sample in member.samples] == [(10, "w3"), (20, "w3"), (24, "w3")]
    model = load_model(CONFIG.model, read_tensors(plain["model.safetensors"], where=""), CPU)
    ids = [0, 3]
    for _ in range(5):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    written = ids[2:] if 39 not in ids[2:] else ids[2 : ids.index(39)]
    assert member.samples[-1]["completion"].split() == [f"w{number}" for number in written]


def test_samples_of_one_prompt_do_not_depend_on_the_others_and_outgrow_the_context() -> None:
    model = build(CONFIG.model, CPU)
    initialise(model, 3)
    long = {"max_tokens": 30}
    together = speaker(**long).speak(model, context=16, alive=lambda: None)
    alone = [
        speaker(prompts=[sample.prompt], **long).speak(model, context=16, alive=lambda: None)[0] for sample in together
    ]
    assert together == alone
    assert max(len(sample.completion.split()) for sample in together) > 16


def test_prompt_follows_what_the_tokenizer_puts_before_a_text_else_the_end_of_text() -> None:
    class Recording(torch.nn.Module):
        """Notes what it is asked."""

        output_weight = torch.eye(40)

        def __init__(self) -> None:
            super().__init__()
            self.asked: list[list[int]] = []

        def likeliest(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
            self.asked += tokens_BT.tolist()
            return tokens_BT[torch.arange(len(lengths_B)), lengths_B - 1]

    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(40)}, "w0"))
    tokenizer.add_special_tokens(["w7"])
    tokenizer.post_processor = processors.TemplateProcessing(single="w7 $A", special_tokens=[("w7", 7)])
    for given_tokenizer, begins, expected in ((tokenizer, [0], [7, 3]), (None, [0], [0, 3]), (None, [], [3])):
        model = Recording()
        plain = Tokenizer(models.WordLevel({f"w{number}": number for number in range(40)}, "w0"))
        made = Speaker(given_tokenizer or plain, ["w3"], max_tokens=1, begins=begins, ends=[])
        made.speak(model, context=16, alive=lambda: None)  # type: ignore[arg-type]
        assert model.asked == [expected]


TEXTS = Records(texts=tuple(f"the {number} of {number * 7 % 11}" for number in range(40)))
DATA = Shuffle(
    tokens=Tokenize(documents=TEXTS, tokenizer=TrainTokenizer(documents=TEXTS, vocab_size=260)), context=16, seed=0
)


def run_of(**options: Any) -> Train:
    return Train(data=DATA, model=Decoder(layers=1, width=16, heads=2), optimizer=AdamW(lr=0.01), tokens=400, **options)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"stop": EarlyStop(every=5, patience=1)}, "Train.stop_data"),
        ({"stop": EarlyStop(every=5, patience=1, metric="training"), "stop_data": DATA}, "Train.stop_data"),
        ({"stop_data": DATA}, "Train.stop_data"),
    ],
)
def test_stop_without_what_decides_it_is_refused_when_it_is_written_down(options: Any, where: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        run_of(**options)
    assert where in caught.value.where


def test_stop_that_never_stops_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="never stops"):
        EarlyStop(every=5)


def test_what_decides_the_end_is_in_the_fingerprint_and_prompts_are_not() -> None:
    def fingerprint(step: Train) -> str:
        return recipe_of(step, lambda parent: "parent", ()).fingerprint

    stop = EarlyStop(every=5, patience=1)
    plain = fingerprint(run_of())
    assert fingerprint(run_of(prompts=["a"], sample_every=3, sample_tokens=9)) == plain
    assert fingerprint(run_of(stop=stop, stop_data=DATA)) != plain


def test_step_that_ends_early_says_why_and_refuses_other_rows_to_decide_by(tmp_path: Path) -> None:
    options = {"batch": 2, "stop": EarlyStop(every=2, patience=1, min_delta=9.0)}
    found = marin.run(run_of(stop_data=DATA, **options), store=tmp_path, backend="inline")
    record = json.loads(found.contents.reader.read(found.file("training.json")))
    assert found.meta["steps"] == record["steps"] == 4
    assert "1 look did not improve" in record["stop"]["reason"]
    other = DATA.model_copy(update={"context": 8})
    with pytest.raises(MarinError, match="have `context` 8, the data 16") as caught:
        marin.run(run_of(stop_data=other, **options), store=tmp_path, backend="inline")
    assert "Train.stop_data" in caught.value.where
