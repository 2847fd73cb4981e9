"""Damaged data never become a result: each kind of file flipped in place is named, and deleting it heals the store."""

import os
import shutil
from pathlib import Path

import pytest

import marin
from marin import AdamW, Decoder, Evaluate, Generate, Records, Shuffle, Tokenize, Train, TrainTokenizer
from marin.base.errors import MarinError
from marin.store import Store

TEXTS = [f"def f{n}(x):\n    return x * {n} + {n * n}\n" * 5 for n in range(60)]


def pipeline() -> dict[str, marin.Step]:
    documents = Records(texts=TEXTS)
    tokenizer = TrainTokenizer(documents=documents, vocab_size=280)
    tokens = Tokenize(documents=documents, tokenizer=tokenizer)
    data = Shuffle(tokens=tokens, context=16, seed=0)
    model = Decoder(layers=1, width=16, heads=2)
    train = Train(data=data, model=model, optimizer=AdamW(lr=1e-3), tokens=500, batch=4)
    steps = [documents, tokenizer, tokens, data, train, Evaluate(checkpoint=train, documents=documents)]
    return {step.step_name(): step for step in [*steps, Generate(checkpoint=train, prompts=["def"], max_tokens=3)]}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    marin.run(list(pipeline().values()), store=tmp_path / "store", backend="inline")
    return tmp_path / "store"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.write_bytes(bytes(data))


# What is damaged, and the step that reads it.
CASES = {
    ("records", "documents.parquet"): "train-tokenizer",
    ("train-tokenizer", "tokenizer.json"): "tokenize",
    ("tokenize", "tokens.npy"): "shuffle",
    ("tokenize", "index.arrow"): "shuffle",
    ("shuffle", "tokens.npy"): "train",
    ("shuffle", "tokenizer.json"): "train",
    ("train", "model.safetensors"): "evaluate",
    ("train", "config.json"): "generate",
}


@pytest.mark.parametrize(("damaged", "reader"), CASES.items(), ids=lambda value: "-".join(value) if value else None)
def test_flipped_file_is_named_and_deleting_it_heals(store: Path, damaged: tuple[str, str], reader: str):
    steps, opened = pipeline(), Store.open(str(store), write=False)
    names = list(steps)
    before = {name: opened.manifests(name)[0] for name in names}
    files = opened.contents(before[damaged[0]])
    every = (*files.files, *(file for shard in files.shards for file in shard.files))
    path = Path(next(file.url for file in every if file.path == damaged[1]))
    flip(path)
    for name in names[names.index(reader) :]:
        Path(opened.artifact_folder(name, before[name].fingerprint), "manifest.json").unlink()
        # A training that finds its last checkpoint reads no data, as blocks are checked when they are reached.
        shutil.rmtree(opened.checkpoints_folder(name, before[name].fingerprint), ignore_errors=True)
    for shard in (store / "shards").rglob("manifest.json"):
        if not str(path).startswith(str(shard.parent)):
            shard.unlink()

    with pytest.raises(MarinError, match="damaged") as caught:
        marin.run(steps[reader], store=store, backend="inline")
    assert damaged[1] in caught.value.what
    assert "delete this file" in caught.value.hint

    os.unlink(path)
    marin.run(list(steps.values()), store=store, backend="inline")
    after = {name: opened.manifests(name)[0].digest for name in names}
    assert after == {name: manifest.digest for name, manifest in before.items()}
