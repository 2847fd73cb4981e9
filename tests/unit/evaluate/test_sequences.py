"""Loss on held-out sequences: what training itself shows, each target once, whatever the batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional

import marin
from marin import (
    AdamW,
    Decoder,
    EvaluateSequences,
    Mix,
    Pack,
    Phase,
    Records,
    Shuffle,
    Step,
    Tokenize,
    Train,
    TrainTokenizer,
)
from marin.base.errors import StepError
from marin.data.loader import SequenceData
from marin.evaluate.checkpoint import load_checkpoint

CONTEXT = 16
TEXTS = tuple(f"the {number} of {number * 7 % 11}, naïve 東京 and more words\n\n\t{number}" for number in range(60))
DOCUMENTS = Records(texts=TEXTS[:40])
HELD_OUT = Records(texts=TEXTS[40:])
TOKENIZER = TrainTokenizer(documents=DOCUMENTS, vocab_size=290)
DATA = Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=TOKENIZER), context=CONTEXT, seed=0)
TOKENS = Tokenize(documents=HELD_OUT, tokenizer=TOKENIZER)
ROWS = Shuffle(tokens=TOKENS, context=CONTEXT, seed=1)
PACKED = Pack(tokens=TOKENS, context=CONTEXT, seed=2, method="best_fit")


def trained(validation: Step[marin.Sequences] | None = None, **options: Any) -> Train:
    model = Decoder(layers=1, width=16, heads=2)
    shared = {"data": DATA, "model": model, "optimizer": AdamW(lr=0.01), "tokens": 4 * CONTEXT * 8, "batch": 4}
    return Train(**shared, validation=validation, validate_every=4, **options)


def run(step: Step[Any], store: Path) -> Any:
    return marin.run(step, store=store, backend="inline")


def last_look(store: Path) -> dict[str, float]:
    events = [json.loads(line) for path in (store / "runs").rglob("*.jsonl") for line in path.read_text().splitlines()]
    looks = [event for event in events if "val_loss" in json.dumps(event)]
    values = [event.get("values", event) for event in looks]
    return max(values, key=lambda value: value["step"])


@pytest.mark.parametrize(("held_out", "mask"), [(ROWS, False), (PACKED, False), (PACKED, True)])
def test_scores_are_those_that_training_shows_at_its_end(
    tmp_path: Path, held_out: Step[marin.Sequences], mask: bool
) -> None:
    training = trained(held_out, document_mask=mask)
    run(training, tmp_path)
    shown = last_look(tmp_path)
    scores = run(EvaluateSequences(checkpoint=training, sequences=held_out, document_mask=mask), tmp_path)
    assert scores.metrics["loss"] == pytest.approx(shown["val_loss"], rel=1e-6)
    assert scores.metrics["bits_per_byte"] == pytest.approx(shown["val_bits_per_byte"], rel=1e-6)
    low, high = json.loads(Path(scores.file("scores.json").url).read_bytes())["bits_per_byte_interval"]
    assert low < scores.metrics["bits_per_byte"] < high


def test_scores_of_each_sequence_are_those_of_a_direct_computation_whatever_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin.evaluate.rows.RANGE_TOKENS", 5 * CONTEXT)
    phase = Phase(length=30, weights={"cut": 0.5, "packed": 0.5})
    shares = Mix(sources={"cut": ROWS, "packed": PACKED}, phases=[phase], exhausted="repeat", seed=3)
    training = trained()
    step = EvaluateSequences(checkpoint=training, sequences=shares, batch_tokens=2 * CONTEXT)
    scores = run(step, tmp_path)
    table = pq.read_table(scores.file("sequences.parquet").url).to_pydict()
    checkpoint = load_checkpoint(marin.load(training, store=tmp_path).contents)
    source = SequenceData(marin.load(shares, store=tmp_path).shards, CONTEXT)
    batch = source.batch(np.arange(len(source)))
    assert table["sequence"] == list(range(len(source)))
    with torch.no_grad():
        logits_BTV = checkpoint.model(torch.from_numpy(batch.tokens)).double()
    wanted_BT = functional.cross_entropy(logits_BTV.mT, torch.from_numpy(batch.targets), reduction="none")
    assert table["nats"] == pytest.approx(wanted_BT.sum(dim=1).tolist(), rel=1e-5)
    assert table["targets"] == (batch.targets >= 0).sum(axis=1).tolist()
    whole = run(EvaluateSequences(checkpoint=training, sequences=shares), tmp_path / "other")
    assert whole.metrics == pytest.approx(scores.metrics, rel=1e-6)


@pytest.mark.parametrize("trouble", ["tokenizer", "context"])
def test_sequences_that_the_model_cannot_take_are_refused_by_name(tmp_path: Path, trouble: str) -> None:
    if trouble == "tokenizer":
        other = TrainTokenizer(documents=HELD_OUT, vocab_size=280)
        rows, said = Shuffle(tokens=Tokenize(documents=HELD_OUT, tokenizer=other), context=CONTEXT, seed=0), "tokenize"
    else:
        rows, said = Shuffle(tokens=TOKENS, context=2 * CONTEXT, seed=0), "context=16"
    with pytest.raises(StepError) as refused:
        run(EvaluateSequences(checkpoint=trained(), sequences=rows), tmp_path)
    assert said in str(refused.value.hint)
    assert "EvaluateSequences.sequences" in refused.value.where
