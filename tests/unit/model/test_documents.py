"""Documents packed into one row: masks, positions, and what one document learns of another, which is nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from marin.model.config import Decoder
from marin.model.decoder import LanguageModel
from marin.model.documents import document_positions, places
from marin.model.init import build, initialise

FAMILIES = {
    "llama": Decoder(layers=2, width=32, heads=4, vocab_size=61, context=32),
    "grouped": Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=61, context=32, qk_norm=True),
    "gpt2": Decoder(layers=2, width=32, heads=4, vocab_size=61, context=32, family="gpt2"),
}
LENGTHS = (9, 14, 5)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(config: Decoder) -> LanguageModel:
    model = build(config, torch.device("cpu"))
    initialise(model, 0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=noise))
    return model


def packed(seed: int = 0) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 61, (2, sum(LENGTHS)), generator=torch.Generator().manual_seed(seed))
    ids = torch.tensor([7, 3, 9], dtype=torch.int32).repeat_interleave(torch.tensor(LENGTHS))
    return tokens, ids.repeat(2, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_document_do_not_change_a_bit_with_the_documents_around_it(family: str) -> None:
    model = made(FAMILIES[family])
    tokens, segments = packed()
    changed = tokens.clone()
    changed[:, :9] = (changed[:, :9] + 5) % 61
    changed[:, 23:] = (changed[:, 23:] + 11) % 61
    before, after = model(tokens, segments), model(changed, segments)
    assert torch.equal(before[:, 9:23], after[:, 9:23])
    assert not torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(model(tokens)[:, 9:23], model(changed)[:, 9:23])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_packed_documents_are_those_of_each_alone(family: str) -> None:
    model = made(FAMILIES[family])
    tokens, segments = packed()
    together = model(tokens, segments)
    start = 0
    for length in LENGTHS:
        alone = model(tokens[:, start : start + length])
        torch.testing.assert_close(together[:, start : start + length], alone, rtol=1e-5, atol=1e-5)
        start += length


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_packed_documents_are_the_sum_of_each_alone(family: str) -> None:
    model = made(FAMILIES[family])
    tokens, segments = packed()
    targets = tokens.roll(-1, dims=1)
    targets[:, [8, 22, 27]] = -100
    together = torch.autograd.grad(model.loss_sum(tokens, targets, segments), list(model.parameters()))
    parts = torch.split(tokens, LENGTHS, dim=1), torch.split(targets, LENGTHS, dim=1)
    apart = sum(model.loss_sum(part, aim) for part, aim in zip(*parts, strict=True))
    for ours, theirs in zip(together, torch.autograd.grad(apart, list(model.parameters())), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_rows_that_are_one_document_give_what_no_segments_give() -> None:
    model = made(FAMILIES["llama"])
    tokens, _ = packed()
    torch.testing.assert_close(model(tokens, torch.zeros_like(tokens)), model(tokens), rtol=1e-6, atol=1e-6)


def test_positions_that_are_given_count_instead_of_those_of_the_segments() -> None:
    model = made(FAMILIES["llama"])
    tokens, segments = packed()
    counted = document_positions(segments)
    assert torch.equal(model(tokens, segments, counted.int()), model(tokens, segments))
    stretched = model(tokens, segments, counted * 3)
    assert not torch.allclose(stretched, model(tokens, segments))
    shifted = model(tokens, segments, counted + 100)  # only differences of positions count in RoPE
    torch.testing.assert_close(shifted, model(tokens, segments), rtol=1e-4, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_mask_and_positions_of_any_packing_follow_from_the_segments(lengths: list[int]) -> None:
    segments = [number % 3 for number, length in enumerate(lengths) for _ in range(length)]
    positions, mask = places(torch.zeros(1, len(segments), dtype=torch.int64), torch.tensor([segments]))
    assert positions[0].tolist() == [place for length in lengths for place in range(length)]
    assert mask is not None
    for query in range(len(segments)):
        seen = [key for key in range(len(segments)) if mask[0, 0, query, key]]
        assert seen == [key for key in range(query + 1) if segments[key] == segments[query]]
