"""bf16 on a GPU beside fp32 on the CPU. Run alone: `pytest -m gpu tests/numerics`."""

import pytest
import torch

from marin.model.config import Decoder
from marin.model.init import build, initialise
from marin.train.config import AdamW, Muon
from marin.train.gradients import Gradients
from marin.train.optimizer import ParameterUpdate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def losses(device: torch.device, num_steps: int = 10) -> list[float]:
    model = build(Decoder(layers=2, width=128, heads=2, kv_heads=1, vocab_size=500, qk_norm=True), device)
    initialise(model, 0)
    gradients = Gradients(model.parameters())
    update = ParameterUpdate(dict(model.named_parameters()), Muon(lr=0.01, others=AdamW(lr=0.01)))
    rows = torch.randint(0, 500, (8, 65), generator=torch.Generator().manual_seed(0)).to(device)
    seen = []
    for _ in range(num_steps):
        gradients.clear()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model.loss_sum(rows[:, :-1], rows[:, 1:]) / (8 * 64)
        loss.backward()
        gradients.clip(1.0)
        update.step(1.0)
        seen.append(float(loss.detach()))
    return seen


def test_bf16_on_cuda_learns_what_fp32_on_the_cpu_learns() -> None:
    assert losses(torch.device("cuda")) == pytest.approx(losses(torch.device("cpu")), rel=0.02)
