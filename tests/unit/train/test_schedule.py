"""Schedules as tables, and what a training configuration refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.base.errors import ConfigurationError
from marin.model.config import Decoder
from marin.train.config import AdamW, Constant, Cosine, Muon, TrainConfig, WarmupStableDecay
from marin.train.ramp import BatchRamp, StepPlan, Stretch
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


def test_schedule_under_a_growing_batch_follows_the_sequences_seen() -> None:
    sizes = [1, 1, 2, 2, 4, 4, 4, 4]
    plan = StepPlan((Stretch(0, 0, 1), Stretch(2, 2, 2), Stretch(4, 6, 4)), 8)
    assert [plan.sequences(step) for step in range(9)] == [sum(sizes[:step]) for step in range(9)]
    wsd = WarmupStableDecay(decay=1.0)
    factors = [factor(wsd, step, 8, plan.sequences) for step in range(8)]
    assert factors == [1 - sum(sizes[: step + 1]) / 22 for step in range(8)]


@settings(max_examples=100, deadline=None)
@given(
    schedule=st.sampled_from([Constant(warmup_steps=3), Cosine(warmup_steps=2), WarmupStableDecay(decay=0.37)]),
    num_steps=st.integers(4, 5000),
    batch=st.integers(1, 4096),
)
def test_schedule_does_not_change_a_bit_with_the_batch_that_its_sequences_are_counted_in(
    schedule: Constant | Cosine | WarmupStableDecay, num_steps: int, batch: int
) -> None:
    for step in (0, 1, num_steps // 3, num_steps // 2, num_steps - 1):
        plain = factor(schedule, step, num_steps)
        assert factor(schedule, step, num_steps, lambda number: number * batch) == plain


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (AdamW, {"beta1": 1.0}),
        (AdamW, {"beta1": float("nan")}),
        (AdamW, {"beta2": -0.1}),
        (AdamW, {"beta2": float("nan")}),
        (AdamW, {"eps": 0.0}),
        (AdamW, {"eps": float("inf")}),
        (AdamW, {"weight_decay": -1.0}),
        (AdamW, {"weight_decay": float("nan")}),
        (AdamW, {"weight_decay": float("inf")}),
        (Muon, {"momentum": 1.0}),
        (Muon, {"weight_decay": float("inf")}),
    ],
)
def test_optimizer_with_an_impossible_number_is_refused(kind: type, change: dict[str, float]) -> None:
    others = {"others": AdamW(lr=0.1)} if kind is Muon else {}
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        kind(lr=0.1, **others, **change)


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf"), "3e-4"])
def test_optimizer_with_an_impossible_lr_is_refused(lr: object) -> None:
    with pytest.raises(ConfigurationError, match="lr"):
        AdamW(lr=lr)


def test_train_config_with_a_misspelt_option_names_the_near_one() -> None:
    with pytest.raises(ConfigurationError, match="no option `warmup`"):
        Cosine(warmup=3)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 0},
        {"batch": 0},
        {"seed": -1},
        {"clip": 0.0},
        {"clip": float("inf")},
        {"micro_batch": 0},
        {"z_loss": -1.0},
        {"z_loss": float("nan")},
        {"ema": 1.0},
        {"ema": 0.0},
        {"ramp": BatchRamp(start=2, increment=1, tokens=10)},
    ],
)
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
