"""The loop: resumed equals undisturbed to the bit, whatever kills it; errors before and during training."""

import contextlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from marin import fs
from marin.base.errors import CheckpointError, ConfigurationError, Interrupted
from marin.base.json import Json
from marin.model.config import Decoder
from marin.model.init import build, initialise
from marin.model.weights import read_tensors
from marin.train.config import AdamW, Cosine, Muon, TrainConfig, WarmupStableDecay
from marin.train.entry import files_of, record_of, train_source
from marin.train.launched import LaunchedMember
from marin.train.loop import Diverged
from marin.train.nonfinite import RollBack, SkipStep, StopRun
from marin.train.order import samples
from marin.train.ramp import BatchRamp
from marin.train.start import Start

STEPS = 12
ADAM = TrainConfig(
    model=Decoder(layers=2, width=16, heads=2, vocab_size=40, context=16),
    optimizer=AdamW(lr=0.01),
    schedule=Cosine(warmup_steps=2),
    tokens=STEPS * 4 * 16,
    batch=4,
    seed=5,
    checkpoint_steps=1,
)
MUON = ADAM.model_copy(
    update={
        "optimizer": Muon(lr=0.02, others=AdamW(lr=0.02)),
        "schedule": WarmupStableDecay(warmup_steps=1),
        "checkpoint_steps": 5,
    }
)


GROWING = ADAM.model_copy(
    update={
        "ramp": BatchRamp(start=1, increment=1, tokens=12 * 16),
        "ema": 0.9,
        "z_loss": 1e-3,
        "tokens": 30 * 16,
        "schedule": WarmupStableDecay(warmup_steps=1, decay=0.5),
    }
)
MASKED_DOCUMENTS = ADAM.model_copy(
    update={
        "document_mask": True,
        "model": Decoder(family="gpt2", layers=2, width=16, heads=2, vocab_size=40, context=16),
        "micro_batch": 3,
        "keep_state": True,
    }
)
UNTIED = ADAM.model.model_copy(update={"tied": False})
SKIPPING = ADAM.model_copy(update={"nonfinite": SkipStep(), "model": UNTIED, "ema": 0.5})
ROLLING = ADAM.model_copy(update={"nonfinite": RollBack(every=3, most=20), "model": UNTIED})


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the loop may catch it."""


@dataclass(frozen=True)
class RandomRows:
    """Nine rows of random tokens with some masked targets, so that runs pass several epochs."""

    digest: str = "d1"
    rows: np.ndarray = field(default_factory=lambda: np.random.default_rng(0).integers(0, 40, (9, 17)))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray, *, segments: bool = False) -> "Rows":
        tokens, targets = self.rows[indices][:, :-1], self.rows[indices][:, 1:].copy()
        targets[indices == 3, 5:] = -100
        ids = np.cumsum(tokens % 5 == 0, axis=1, dtype=np.int32) if segments else None
        return Rows(tokens, targets, ids, None)


class Rows(NamedTuple):
    """What a source gives."""

    tokens: np.ndarray
    targets: np.ndarray
    segments: np.ndarray | None
    positions: np.ndarray | None


@dataclass(frozen=True)
class ScriptedMember(LaunchedMember):
    """A lone rank that calls `at` with its phase and step at every beat."""

    at: Callable[["ScriptedMember", str, int], None] = lambda member, phase, step: None
    metrics: list[dict[str, float]] = field(default_factory=list)
    done: list[tuple[float, float, str]] = field(default_factory=list)

    def beat(self, phase: str, step: int) -> None:
        self.at(self, phase, step)

    def metric(self, **values: float) -> None:
        self.metrics.append(values)

    def progress(self, done: float, total: float, unit: str) -> None:
        self.done.append((done, total, unit))


POISON, BAD_ROW = 39, 17


def poisoned_rows() -> np.ndarray:
    """Twenty rows, one of which has the token whose embedding is no number in `poisoned_start`."""
    rows = np.random.default_rng(1).integers(0, POISON, (20, 17))
    rows[BAD_ROW, 4] = POISON
    return rows


def poisoned_start() -> Start:
    model = build(UNTIED, torch.device("cpu"))
    initialise(model, 0)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    return Start("poison", weights)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(
    folder: Path,
    config: TrainConfig = ADAM,
    member: LaunchedMember | None = None,
    source: RandomRows | None = None,
    output: str = "output",
) -> dict[str, Json]:
    is_poisoned = not isinstance(config.nonfinite, StopRun)
    return train_source(
        member or LaunchedMember(),
        config=config,
        source=source or (RandomRows(rows=poisoned_rows()) if is_poisoned else RandomRows()),
        start=poisoned_start() if is_poisoned else None,
        checkpoints=str(folder / "checkpoints"),
        output=fs.FolderOutput(str(folder / output)),
        eos_id=0,
    )


def result(folder: Path, output: str = "output") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / output).iterdir())}


def raise_at(phase: str, step: int) -> Callable[[ScriptedMember, str, int], None]:
    def at(member: ScriptedMember, now: str, number: int) -> None:
        if (now, number) == (phase, step):
            raise Killed

    return at


CASES = {
    "adamw": ADAM,
    "muon": MUON,
    "growing": GROWING,
    "documents": MASKED_DOCUMENTS,
    "skipping": SKIPPING,
    "rolling": ROLLING,
}


@pytest.fixture(scope="module", params=CASES)
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, dict]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed")
    config = CASES[request.param]
    train(folder, config)
    return config, result(folder)


@pytest.mark.parametrize("phase", ["train", "checkpoint"])
@pytest.mark.parametrize("step", range(STEPS + 1))
def test_run_killed_at_any_step_and_resumed_equals_the_undisturbed_one(
    tmp_path: Path, undisturbed: tuple[TrainConfig, dict], step: int, phase: str
) -> None:
    config, expected = undisturbed
    try:
        train(tmp_path, config, ScriptedMember(at=raise_at(phase, step)))
    except Killed:
        assert not (tmp_path / "output" / "training.json").exists()
        train(tmp_path, config, LaunchedMember(generation=1))
    assert result(tmp_path) == expected


def test_run_killed_before_every_step_makes_progress_and_equals_the_undisturbed_one(
    tmp_path: Path, undisturbed: tuple[TrainConfig, dict]
) -> None:
    config, expected = undisturbed
    config = config.model_copy(update={"checkpoint_steps": 1})
    for step in range(1, STEPS + 1):
        with pytest.raises(Killed):
            train(
                tmp_path,
                config,
                ScriptedMember(generation=step, at=raise_at("write" if step == STEPS else "train", step)),
            )
    train(tmp_path, config, LaunchedMember(generation=STEPS + 1))
    assert result(tmp_path) == expected


def test_run_with_another_placement_learns_the_same(tmp_path: Path) -> None:
    train(tmp_path)
    record = json.loads(result(tmp_path)["training.json"])
    other = ADAM.model_copy(update={"micro_batch": 3, "log_every": 5, "checkpoint_steps": None})
    train(tmp_path / "other", other)
    again = json.loads(result(tmp_path / "other")["training.json"])
    assert [point["loss"] for point in again["curve"]] == pytest.approx(
        [point["loss"] for point in record["curve"]], rel=2e-6
    )
    assert again["config"] == record["config"]
    assert again["audit"] == record["audit"]


def test_run_asked_to_stop_checkpoints_and_continues_to_the_same_end(
    tmp_path: Path, undisturbed: tuple[TrainConfig, dict]
) -> None:
    config, expected = undisturbed

    def stop(member: ScriptedMember, phase: str, step: int) -> None:
        if (phase, step) == ("train", 6):
            member.stop.set()

    stopped = train(tmp_path, config, ScriptedMember(at=stop))
    saved = 6 if isinstance(config.nonfinite, RollBack) else 7
    assert stopped == {"stopped": saved}
    assert not (tmp_path / "output").exists()
    with pytest.raises(Interrupted, match=f"stopped at step {saved}"):
        files_of([stopped])
    train(tmp_path, config)
    assert result(tmp_path) == expected


def test_run_started_again_after_its_end_writes_the_same_result(tmp_path: Path) -> None:
    train(tmp_path)
    train(tmp_path, output="again")
    assert result(tmp_path) == result(tmp_path, "again")


def test_run_reports_files_record_metrics_and_progress(tmp_path: Path) -> None:
    member = ScriptedMember()
    returned = train(tmp_path, ADAM.model_copy(update={"log_every": 5}), member)
    assert [file.path for file in files_of([returned])] == ["config.json", "model.safetensors", "training.json"]
    record = record_of([returned])
    assert record.keys() == {"steps", "tokens", "parameters", "loss"}
    assert record["steps"] == STEPS
    assert [values["step"] for values in member.metrics] == [5, 10, 12]
    learnt = {"step", "tokens", "loss", "lr", "grad_norm", "restarts"}
    measured = {"tokens_per_second", "step_seconds", "data_wait_fraction", "host_memory_bytes"}
    assert member.metrics[0].keys() == learnt | measured
    assert all(0 <= values["data_wait_fraction"] < 1 for values in member.metrics)
    assert member.metrics[-1]["tokens"] == record["tokens"]
    assert member.metrics[-1]["lr"] == pytest.approx(0.001)
    assert member.done[-1] == (768, 768, "tokens")


def test_run_learns_its_rows(tmp_path: Path) -> None:
    train(tmp_path, ADAM.model_copy(update={"tokens": 60 * 64, "checkpoint_steps": 100}))
    curve = json.loads(result(tmp_path)["training.json"])["curve"]
    assert curve[0]["loss"] == pytest.approx(math.log(40), rel=0.02)
    assert curve[-1]["loss"] < 2.5


def test_run_logs_a_hash_of_its_samples_every_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="marin.train.loop"):
        train(tmp_path)
    lines = [record.getMessage() for record in caplog.records if "samples" in record.getMessage()]
    assert [line.split(" samples ")[0] for line in lines] == [f"step {step} rank 0" for step in range(STEPS)]
    assert len({line.split()[-1] for line in lines}) == STEPS


@pytest.mark.parametrize(
    ("change", "source", "message"),
    [
        ({"seed": 6}, RandomRows(), "`seed` was 5, now it is 6"),
        ({"optimizer": AdamW(lr=0.5)}, RandomRows(), r"`optimizer.lr` was 0.01, now it is 0.5"),
        ({"tokens": 128}, RandomRows(), "`tokens` was 768, now it is 128"),
        ({}, RandomRows(digest="d2"), "`dataset` was 'd1', now it is 'd2'"),
    ],
)
def test_run_resumed_with_another_order_or_configuration_names_both_values(
    tmp_path: Path, change: dict[str, object], source: RandomRows, message: str
) -> None:
    train(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        train(tmp_path, ADAM.model_copy(update=change), source=source)


def test_run_that_diverges_stops_with_step_and_samples_and_saves_nothing_bad(tmp_path: Path) -> None:
    wild = ADAM.model_copy(update={"optimizer": AdamW(lr=1e30), "schedule": Cosine()})
    with pytest.raises(Diverged, match=r"nan at step [1-9]") as caught:
        train(tmp_path, wild)
    assert "sequences" in caught.value.where
    assert "lower `lr`" in caught.value.hint
    for path in (tmp_path / "checkpoints").glob("*/*.safetensors"):
        tensors = read_tensors(path.read_bytes(), where=str(path))
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def test_run_without_any_target_in_a_step_goes_on_with_a_zero_loss(tmp_path: Path) -> None:
    class Silent(RandomRows):
        def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            tokens, targets = super().batch(indices)[:2]
            return tokens, np.full_like(targets, -100)

    returned = train(tmp_path, source=Silent())
    assert record_of([returned])["loss"] == 0.0
    assert record_of([returned])["tokens"] == 0


def record(folder: Path) -> dict[str, Any]:
    return json.loads(result(folder)["training.json"])


def ids(config: TrainConfig, start: int, stop: int) -> list[int]:
    return samples(start, stop, num_sequences=20, seed=config.seed).tolist()


def test_steps_that_are_skipped_are_those_with_the_bad_sequence_and_change_no_weight(tmp_path: Path) -> None:
    member = ScriptedMember()
    returned = train(tmp_path, SKIPPING.model_copy(update={"log_every": 1}), member)
    bad = [step for step in range(STEPS) if BAD_ROW in ids(SKIPPING, 4 * step, 4 * step + 4)]
    assert len(bad) >= 2
    assert record(tmp_path)["events"] == [{"step": step, "action": "skip"} for step in bad]
    assert record_of([returned])["nonfinite_steps"] == len(bad)
    assert member.metrics[-1]["nonfinite_steps"] == len(bad)
    points = record(tmp_path)["curve"]
    assert [point["step"] - 1 for point in points if point["loss"] is None] == bad
    tensors = read_tensors(result(tmp_path)["model.safetensors"], where="")
    poisoned = tensors.pop("model.embed_tokens.weight")
    assert bool(torch.isfinite(poisoned[:POISON]).all())
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def test_steps_that_may_be_skipped_run_out(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="after 1 others"):
        train(tmp_path, SKIPPING.model_copy(update={"nonfinite": SkipStep(most=1)}))


def test_run_that_rolls_back_passes_over_the_samples_since_the_checkpoint_and_records_them(tmp_path: Path) -> None:
    train(tmp_path, ROLLING)
    events = record(tmp_path)["events"]
    assert events[0] == {"step": 4, "action": "rollback", "to": 3, "sequences": [12, 20]}
    offset = 0
    for event in events:
        begin, end = event["sequences"]
        assert (begin, end) == (offset + 4 * event["to"], offset + 4 * event["step"] + 4)
        assert BAD_ROW in ids(ROLLING, end - 4, end)
        assert event["to"] % 3 == 0
        offset += end - begin
    used = [number for step in range(3, STEPS) for number in ids(ROLLING, offset + 4 * step, offset + 4 * step + 4)]
    assert BAD_ROW not in used[-4:]
    assert all(math.isfinite(point["loss"]) for point in record(tmp_path)["curve"])
    (state,) = (tmp_path / "checkpoints").glob("step-00000012.*/state.json")
    assert json.loads(state.read_text())["position"] == offset + 4 * STEPS


@pytest.mark.parametrize(("every", "most"), [(6, 20), (3, 1)])
def test_run_without_a_checkpoint_to_return_to_or_too_many_returns_stops(tmp_path: Path, every: int, most: int) -> None:
    with pytest.raises(Diverged, match="at step"):
        train(tmp_path, ROLLING.model_copy(update={"nonfinite": RollBack(every=every, most=most)}))


def test_average_of_the_weights_is_the_result_and_follows_its_formula(tmp_path: Path) -> None:
    config = ADAM.model_copy(update={"ema": 0.6})
    seen: list[dict[str, torch.Tensor]] = []
    for steps in range(1, STEPS + 1):  # the weights after each step, from checkpoints of every step
        stop = ScriptedMember(at=raise_at("train", steps))
        with contextlib.suppress(Killed):
            train(tmp_path, config, stop)
        (path,) = (tmp_path / "checkpoints").glob(f"step-{steps:08d}.*")
        seen.append(read_tensors((path / "model.safetensors").read_bytes(), where=""))
    model = build(config.model, torch.device("cpu"))
    initialise(model, config.seed)
    average = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    for step, weights in enumerate(seen):
        decay = min(0.6, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * weights[name].double() for name in average}
    final = read_tensors(result(tmp_path)["model.safetensors"], where="")
    assert all(torch.allclose(final[name].double(), average[name], rtol=1e-5, atol=1e-6) for name in final)
    assert not torch.equal(final["model.norm.weight"], seen[-1]["model.norm.weight"])


def test_run_with_a_growing_batch_takes_each_sequence_in_order_and_reports_the_batch(tmp_path: Path) -> None:
    member = ScriptedMember()
    train(tmp_path, GROWING.model_copy(update={"log_every": 1}), member)
    assert [values["batch"] for values in member.metrics] == [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]
    assert member.done[-1] == (30 * 16, 30 * 16, "tokens")
    (state,) = (tmp_path / "checkpoints").glob("step-00000012.*/state.json")
    assert json.loads(state.read_text())["position"] == 30


def test_documents_kept_apart_learn_something_else_than_documents_run_together(tmp_path: Path) -> None:
    train(tmp_path / "apart", MASKED_DOCUMENTS)
    train(tmp_path / "together", MASKED_DOCUMENTS.model_copy(update={"document_mask": False}))
    apart, together = (record(tmp_path / name)["curve"][-1]["loss"] for name in ("apart", "together"))
    assert apart != together


def test_documents_of_data_that_do_not_tell_them_apart_are_refused(tmp_path: Path) -> None:
    class Plain(RandomRows):
        def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rows = super().batch(indices)
            return rows.tokens, rows.targets

    train(tmp_path / "without", source=Plain())
    with pytest.raises(ConfigurationError, match="do not say where documents begin"):
        train(tmp_path, MASKED_DOCUMENTS, source=Plain())


def test_configuration_in_the_record_has_new_options_only_where_they_are_used(tmp_path: Path) -> None:
    train(tmp_path / "plain")
    train(tmp_path / "growing", GROWING)
    plain, growing = record(tmp_path / "plain")["config"], record(tmp_path / "growing")["config"]
    assert growing.keys() - plain.keys() == {"ramp", "ema", "z_loss"}
    assert "family" not in plain["model"]
    assert "decay_embeddings" not in plain["optimizer"]
