"""What a rank measures of itself, on a clock that only the test moves."""

import pytest
import torch

from marin.model.config import Decoder
from marin.train.config import AdamW, TrainConfig
from marin.train.flops import flops_per_token
from marin.train.meter import Meter

CONFIG = TrainConfig(
    model=Decoder(layers=1, width=16, heads=2, vocab_size=40, context=16),
    optimizer=AdamW(lr=0.01),
    tokens=6400,
    batch=4,
    seed=0,
    schedule={"kind": "constant"},
)


class Clock:
    """Seconds since the test began."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def metered(clock: Clock, **change: float) -> Meter:
    config = CONFIG.model_copy(update=change)
    return Meter(config, world_size=2, device=torch.device("cpu"), clock=clock)


def test_meter_reads_the_steps_since_its_last_reading() -> None:
    clock = Clock()
    meter = metered(clock, peak_flops=1e6)
    clock.now = 100.0
    meter.start(step=10, tokens=600, sequences=40)
    clock.now = 104.0
    first = meter.read(step=20, tokens=1200, sequences=80, waited=1.0)
    assert (first["tokens_per_second"], first["step_seconds"], first["data_wait_fraction"]) == (150.0, 0.4, 0.25)
    # 40 sequences of 16 tokens in 4 s, masked targets or not, on two devices
    assert first["mfu"] == pytest.approx(160 * flops_per_token(CONFIG.model, 16) / 2e6)
    assert first["host_memory_bytes"] > 2**20
    clock.now = 106.0
    second = meter.read(step=25, tokens=1300, sequences=100, waited=1.5)
    assert (second["tokens_per_second"], second["step_seconds"], second["data_wait_fraction"]) == (50.0, 0.4, 0.25)


def test_meter_leaves_out_what_was_no_step_and_begins_anew_after_a_return() -> None:
    clock = Clock()
    meter = metered(clock)
    clock.now = 5.0
    meter.leave_out(3.0)
    assert meter.read(step=4, tokens=200, sequences=16, waited=0.0)["tokens_per_second"] == 100.0
    clock.now = 50.0
    meter.start(step=2, tokens=100, sequences=8)
    clock.now = 51.0
    assert meter.read(step=4, tokens=200, sequences=16, waited=0.5)["data_wait_fraction"] == 0.5


def test_meter_tells_no_mfu_on_a_cpu_without_a_peak() -> None:
    assert "mfu" not in metered(Clock()).read(step=1, tokens=64, sequences=4, waited=0.0)
