"""MFU's two sides: operations counted by formula against torch's own counter, and the table of peaks."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from marin.model.config import Decoder
from marin.model.init import build, initialise
from marin.train.flops import flops_per_token, model_flops_utilization, multiplied_parameters, peak_flops

CONTEXT = 32


@pytest.mark.parametrize(
    "model",
    [
        Decoder(layers=2, width=32, heads=4, kv_heads=2, head_width=16, vocab_size=97, context=CONTEXT),
        Decoder(layers=1, width=24, heads=2, mlp_width=40, vocab_size=50, context=CONTEXT, tied=False),
        Decoder(family="gpt2", layers=3, width=16, heads=2, vocab_size=64, context=CONTEXT),
    ],
)
def test_flops_of_matrices_equal_what_torch_counts(model: Decoder) -> None:
    network = build(model, torch.device("cpu"))
    initialise(network, 0)
    tokens_BT = torch.randint(model.vocabulary, (2, CONTEXT))
    with FlopCounterMode(display=False) as counter:
        network.hidden(tokens_BT, None).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    attention = sum(number for operation, number in counted.items() if "attention" in str(operation))
    output_layer = model.vocabulary * model.width  # its sums go into place, which the counter does not see
    expected = 6 * (multiplied_parameters(model) - output_layer) * tokens_BT.numel()
    assert counter.get_total_flops() - attention == expected


def test_flops_per_token_of_palm_540b_agree_with_its_appendix() -> None:
    # PaLM 540B (arXiv:2204.02311, table 1, appendix B): 238.3k tokens/s on 6144 TPU v4 of 275 TFLOPS are an MFU of
    # 46.2 % with attention and 45.7 % without. Its parallel layers have multi-query attention and a SwiGLU of 4 widths.
    palm = Decoder(
        layers=118, width=18432, heads=48, kv_heads=1, head_width=256, mlp_width=73728, vocab_size=256_000, context=2048
    )
    assert multiplied_parameters(palm) == pytest.approx(540.35e9, rel=0.001)
    flops = flops_per_token(palm, 2048)
    used = model_flops_utilization(tokens_per_second=238.3e3, flops_per_token=flops, num_devices=6144, peak=275e12)
    assert used == pytest.approx(0.462, abs=0.001)


@pytest.mark.parametrize(
    ("name", "bfloat16", "float32"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5e12, 67e12),
        ("NVIDIA H100 PCIe", 756e12, 51e12),
        ("NVIDIA H200", 989.5e12, 67e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("NVIDIA A10", 125e12, 31.2e12),
        ("Tesla V100-SXM2-32GB", None, 15.7e12),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None, None),
        ("NVIDIA A10G", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("Some accelerator of next year", None, None),
    ],
)
def test_peak_of_a_device_is_that_of_its_own_name_and_dtype(
    name: str, bfloat16: float | None, float32: float | None
) -> None:
    assert peak_flops(name, bfloat16=True) == bfloat16
    assert peak_flops(name, bfloat16=False) == float32


def test_flops_per_token_of_frozen_weights_leave_out_their_gradients() -> None:
    model = Decoder(layers=2, width=32, heads=2, vocab_size=100)
    assert flops_per_token(model, 16) - flops_per_token(model, 16, frozen=True) == 2 * multiplied_parameters(model)
