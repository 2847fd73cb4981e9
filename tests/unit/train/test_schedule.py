"""Schedules as tables, and what a training configuration refuses."""

import pytest

from marin.base.errors import ConfigurationError
from marin.model.config import Decoder
from marin.train.config import AdamW, Constant, Cosine, Muon, TrainConfig, WarmupStableDecay
from marin.train.schedule import factor

MODEL = Decoder(layers=1, width=8, heads=2)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        (Constant(warmup_steps=4), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]),
        (Cosine(warmup_steps=2, final=0.0), [0.5, 1, 0.9619, 0.8536, 0.6913, 0.5, 0.3087, 0.1464, 0.0381, 0]),
        (Cosine(final=1.0), [1] * 10),
        (WarmupStableDecay(warmup_steps=2, decay=0.4), [0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]),
        (WarmupStableDecay(decay=0.2, final=0.5), [1, 1, 1, 1, 1, 1, 1, 1, 0.75, 0.5]),
        (WarmupStableDecay(decay=0.0), [1] * 10),
        (WarmupStableDecay(warmup_steps=5, decay=1.0), [0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2, 0]),
    ],
)
def test_schedule_over_ten_steps_follows_its_table(
    schedule: Constant | Cosine | WarmupStableDecay, expected: list[float]
) -> None:
    assert [round(factor(schedule, step, 10), 4) for step in range(10)] == pytest.approx(expected)


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf"), "3e-4"])
def test_optimizer_with_an_impossible_lr_is_refused(lr: object) -> None:
    with pytest.raises(ConfigurationError, match="lr"):
        AdamW(lr=lr)


def test_train_config_with_a_misspelt_option_names_the_near_one() -> None:
    with pytest.raises(ConfigurationError, match="no option `warmup`"):
        Cosine(warmup=3)


@pytest.mark.parametrize("change", [{"tokens": 0}, {"batch": 0}, {"seed": -1}, {"clip": 0.0}, {"micro_batch": 0}])
def test_train_config_out_of_range_is_refused(change: dict[str, object]) -> None:
    good = {"model": MODEL, "optimizer": AdamW(lr=1e-3), "schedule": Constant(), "tokens": 10, "batch": 2, "seed": 0}
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        TrainConfig(**{**good, **change})


def test_train_config_from_json_chooses_optimizer_and_schedule_by_kind() -> None:
    config = TrainConfig(
        model=MODEL,
        optimizer=Muon(lr=0.01, others=AdamW(lr=0.02)),
        schedule=WarmupStableDecay(warmup_steps=1),
        tokens=100,
        batch=2,
        seed=0,
    )
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    assert config.num_steps(context=8) == 7
