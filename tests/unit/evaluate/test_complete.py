"""Completions: the same for any batch, shard and neighbour; stops, windows, failures; prompts or documents."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import marin
from marin import Generate, Records, Step
from marin.base.errors import ConfigurationError, StepError
from marin.evaluate import generate
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.complete import NOT_FINITE, Prompt, Sampling, complete_prompts
from marin.evaluate.sampling import choose, generator

PROMPTS = [
    Prompt(str(number), text) for number, text in enumerate(["x = 1\n" * 3, "", "def f", "京" * 5, "which", "x"])
]


@torch.no_grad()
def one_by_one(checkpoint: LoadedCheckpoint, prompt: Prompt, sampling: Sampling) -> list[int]:
    """Continue a prompt without cache or batch."""
    ids = [0, *checkpoint.encode(prompt.text)]
    draws, begin = generator(sampling.seed, f"{prompt.id}\0{prompt.text}"), len(ids)
    while len(ids) - begin < sampling.max_tokens:
        logits = checkpoint.model(torch.tensor([ids[-checkpoint.context :]]))[:, -1]
        draw = [float(draws.random())] if sampling.temperature else [0.0]
        (token,) = choose(logits, draw, temperature=sampling.temperature, top_p=sampling.top_p)
        if token == 0:
            break
        ids.append(token)
    return ids[begin:]


SAMPLINGS = [
    Sampling(12),
    Sampling(12, temperature=1.0, seed=4),
    Sampling(12, temperature=0.7, top_p=0.8),
    Sampling(100, temperature=1.0, seed=1),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "top-p", "past the context"])
@pytest.mark.parametrize("batch_tokens", [1, 100, 100_000])
def test_completions_equal_those_made_one_by_one_whatever_the_batch(
    checkpoint: LoadedCheckpoint, sampling: Sampling, batch_tokens: int
) -> None:
    rows = complete_prompts(checkpoint, PROMPTS, sampling, batch_tokens=batch_tokens)
    for prompt, row in zip(PROMPTS, rows, strict=True):
        expected = one_by_one(checkpoint, prompt, sampling)
        assert row["completion"] == checkpoint.tokenizer.decode(expected, skip_special_tokens=False)
        assert (row["id"], row["prompt"], row["tokens"]) == (prompt.id, prompt.text, len(expected))
        assert row["ended"] == (len(expected) < sampling.max_tokens)


def test_completions_do_not_depend_on_order_and_differ_by_id_and_seed(checkpoint: LoadedCheckpoint) -> None:
    sampling = Sampling(20, temperature=1.0)
    rows = complete_prompts(checkpoint, PROMPTS, sampling, batch_tokens=200)
    assert complete_prompts(checkpoint, PROMPTS[::-1], sampling, batch_tokens=300) == rows[::-1]
    same = [Prompt("a", "x"), Prompt("b", "x")]
    one, two = complete_prompts(checkpoint, same, sampling, batch_tokens=200)
    assert one["completion"] != two["completion"]
    (other,) = complete_prompts(checkpoint, same[:1], Sampling(20, temperature=1.0, seed=1), batch_tokens=200)
    assert one["completion"] != other["completion"]


def test_completion_ends_before_the_first_stop_text(checkpoint: LoadedCheckpoint) -> None:
    prompt = Prompt("0", "def f")
    (whole,) = complete_prompts(checkpoint, [prompt], Sampling(12), batch_tokens=100)
    text = whole["completion"]
    stop = text[3:5]
    (cut,) = complete_prompts(checkpoint, [prompt], Sampling(12, stop=(stop, "never")), batch_tokens=100)
    assert cut["completion"] == text[: text.find(stop)]
    assert cut["ended"]


def test_prompt_longer_than_the_context_is_cut_and_counted(checkpoint: LoadedCheckpoint) -> None:
    prompt = Prompt("0", "東" * 200)
    count = len(checkpoint.encode(prompt.text)) + 1
    (row,) = complete_prompts(checkpoint, [prompt], Sampling(5), batch_tokens=1000)
    assert row["cut"] == count - checkpoint.context
    assert row["completion"] == checkpoint.tokenizer.decode(one_by_one(checkpoint, prompt, Sampling(5)))


def test_prompt_without_finite_logits_is_listed_as_failed(make_checkpoint: Callable[..., LoadedCheckpoint]) -> None:
    broken = make_checkpoint(marin.Decoder(layers=1, width=32, heads=4, vocab_size=300, context=96))
    poison = broken.encode("Q")[0]
    with torch.no_grad():
        broken.model.model.embed_tokens.weight = torch.nn.Parameter(broken.model.model.embed_tokens.weight.clone())
    untied = torch.nn.Linear(32, 300, bias=False)
    with torch.no_grad():
        untied.weight.copy_(broken.model.output_weight)
        broken.model.lm_head = untied
        broken.model.model.embed_tokens.weight[poison] = torch.nan
    rows = complete_prompts(broken, [Prompt("0", "Q"), Prompt("1", "x")], Sampling(3), batch_tokens=100)
    assert (rows[0]["error"], rows[0]["completion"], rows[0]["tokens"]) == (NOT_FINITE, "", 0)
    assert rows[1]["error"] is None


def test_choose_follows_temperature_and_top_p() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]]).expand(4000, 4)
    draws = [(number + 0.5) / 4000 for number in range(4000)]
    shares = torch.softmax(logits[0] / 0.5, dim=0)
    counts = torch.bincount(torch.tensor(choose(logits, draws, temperature=0.5, top_p=1.0)), minlength=4)
    assert torch.allclose(counts / 4000, shares, atol=1e-3)
    kept = torch.bincount(torch.tensor(choose(logits, draws, temperature=1.0, top_p=0.7)), minlength=4)
    assert kept[[0, 3]].tolist() == [0, 0]
    assert float(kept[1] / kept[2]) == pytest.approx(2.71828, rel=0.01)
    assert choose(logits[:1], [0.999999999], temperature=1.0, top_p=1e-9) == [1]
    assert choose(logits[:1], [1 - 1e-16], temperature=1.0, top_p=1.0) == [3]


def test_generate_of_prompts_and_of_documents_gives_ordered_rows_for_any_shards(
    tmp_path: Path, trained: Step[marin.Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"question {number}" for number in range(7)]
    options = {"checkpoint": trained, "max_tokens": 6, "temperature": 1.0, "seed": 2}

    def rows(step: Generate, store: str) -> list[dict[str, object]]:
        return marin.run(step, store=tmp_path / store, backend="inline").to_rows()

    whole = rows(Generate(prompts=texts, **options), "one")
    assert [row["prompt"] for row in whole] == texts
    assert [row["id"] for row in whole] == [str(number) for number in range(7)]
    monkeypatch.setattr(generate, "SHARD_PROMPTS", 3)
    assert rows(Generate(prompts=texts, batch_tokens=40, **options), "two") == whole
    assert rows(Generate(documents=Records(texts=texts), **options), "two") == whole


def test_generate_with_a_model_that_diverged_fails(tmp_path: Path, diverged: Step[marin.Checkpoint]) -> None:
    with pytest.raises(StepError, match="none of 1 prompts"):
        marin.run(Generate(checkpoint=diverged, prompts=["x"], max_tokens=3), store=tmp_path, backend="inline")


def test_generate_without_prompts_or_with_two_kinds_is_refused(trained: Step[marin.Checkpoint]) -> None:
    with pytest.raises(ConfigurationError, match="one of `prompts` and `documents`"):
        Generate(checkpoint=trained, max_tokens=3)
    with pytest.raises(ConfigurationError, match="one of `prompts` and `documents`"):
        Generate(checkpoint=trained, max_tokens=3, prompts=["x"], documents=Records(texts=["x"]))
