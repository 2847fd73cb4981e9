"""A look at held-out sequences: the right figures, and not one bit of the training changed."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

import marin
from marin import AdamW, Constant, Decoder, Records, Shuffle, Step, Tokenize, Train, TrainTokenizer, fs
from marin.base.errors import MarinError
from marin.data.token_sizes import token_sizes
from marin.data.tokenizer import load_tokenizer
from marin.graph.recipe import recipe_of
from marin.model.hub import load_model
from marin.model.init import build, initialise
from marin.model.weights import read_tensors
from marin.train.config import TrainConfig
from marin.train.entry import train_source
from marin.train.launched import LaunchedMember
from marin.train.looks import Watched
from marin.train.ranks import Alone
from marin.train.validation import HeldOut, Validation

CONFIG = TrainConfig(
    model=Decoder(layers=1, width=16, heads=2, vocab_size=40, context=16),
    optimizer=AdamW(lr=0.003),
    schedule=Constant(),
    tokens=12 * 4 * 16,
    batch=4,
    seed=5,
    checkpoint_steps=3,
    validate_every=5,
    validate_sequences=9,
)
BYTES = np.arange(40) % 4  # every fourth token stands for no text
CPU = torch.device("cpu")


class Rows(NamedTuple):
    """Numbered sequences."""

    rows: np.ndarray
    digest: str = "rows"

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tokens, targets = self.rows[indices][:, :-1].copy(), self.rows[indices][:, 1:].copy()
        targets[indices == 3, 5:] = -100
        return tokens, targets


DATA, OTHERS = (Rows(np.random.default_rng(seed).integers(0, 40, (20, 17))) for seed in (0, 1))


class Hearing(LaunchedMember):
    """Keeps the metrics."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "heard", [])

    def metric(self, **values: float) -> None:
        self.heard.append(values)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(folder: Path, held_out: HeldOut | None) -> tuple[dict[str, bytes], list[dict[str, float]]]:
    member = Hearing()
    train_source(
        member,
        config=CONFIG,
        source=DATA,
        checkpoints=str(folder / "checkpoints"),
        output=fs.FolderOutput(str(folder / "output")),
        watched=Watched(held_out=held_out),
    )
    written = sorted((folder / "output").iterdir())
    return {path.name: path.read_bytes() for path in written}, [m for m in member.heard if "val_loss" in m]


def test_run_that_looks_at_held_out_data_is_the_run_that_does_not(tmp_path: Path) -> None:
    plain, nothing = train(tmp_path / "plain", None)
    looking, seen = train(tmp_path / "looking", HeldOut(OTHERS, BYTES))
    assert looking == plain
    assert nothing == []
    assert [values["step"] for values in seen] == [5, 10, 12]


def test_held_out_loss_and_bits_per_byte_are_those_of_the_weights(tmp_path: Path) -> None:
    files, seen = train(tmp_path, HeldOut(OTHERS, BYTES))
    model = load_model(CONFIG.model, read_tensors(files["model.safetensors"], where=""), CPU)
    tokens, targets = map(torch.from_numpy, OTHERS.batch(np.arange(9)))
    logits = model(tokens).detach().flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="none").double()
    ids = [id if id >= 0 else 0 for id in targets.flatten().tolist()]  # 0 stands for no text either
    is_text = torch.tensor([id % 4 > 0 for id in ids])
    bits = float(losses[is_text].sum()) / math.log(2) / sum(id % 4 for id in ids)
    assert seen[-1]["val_loss"] == pytest.approx(float(losses.sum()) / int((targets >= 0).sum()), rel=1e-6)
    assert seen[-1]["val_bits_per_byte"] == pytest.approx(bits, rel=1e-6)


def test_held_out_data_of_unknown_bytes_have_a_loss_and_no_bits_per_byte(tmp_path: Path) -> None:
    _, seen = train(tmp_path, HeldOut(OTHERS, None))
    assert all(values.keys() == {"step", "tokens", "val_loss"} for values in seen)


class Part(Alone):
    """One of several ranks whose sums meet in a list."""

    def __init__(self, rank: int, world_size: int, sums: list[torch.Tensor]) -> None:
        self.rank, self.world_size, self.sums = rank, world_size, sums

    def add(self, tensor: torch.Tensor) -> None:
        self.sums.append(tensor.clone())
        tensor.copy_(torch.stack(self.sums).sum(dim=0))


@settings(max_examples=15, deadline=None)
@given(world_size=st.integers(1, 12), micro_batch=st.integers(1, 9))
def test_held_out_loss_does_not_depend_on_ranks_and_micro_batches(world_size: int, micro_batch: int) -> None:
    torch.set_num_threads(1)
    model = build(CONFIG.model, CPU)
    initialise(model, 0)
    validation = Validation(HeldOut(OTHERS, BYTES), sequences=9, documents=False, device=CPU)
    alone = validation.losses(model, Alone(), micro_batch=9, alive=lambda: None)
    sums: list[torch.Tensor] = []
    for rank in range(world_size):
        last = validation.losses(model, Part(rank, world_size, sums), micro_batch=micro_batch, alive=lambda: None)
    assert last == pytest.approx(alone, rel=1e-6)


TEXTS = tuple(f"the {number} of {number * 7 % 11}, naïve 東京 and more words\n\n\t{number}" for number in range(40))
DOCUMENTS = Records(texts=TEXTS)
TOKENIZER = TrainTokenizer(documents=DOCUMENTS, vocab_size=290)


def packed(tokenizer: Step[marin.Tokenizer] = TOKENIZER, context: int = 16, seed: int = 0) -> Shuffle:
    return Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=tokenizer), context=context, seed=seed)


def run_of(validation: Step[marin.Sequences] | None) -> Train:
    model = Decoder(layers=1, width=16, heads=2)
    return Train(data=packed(), model=model, optimizer=AdamW(lr=0.01), tokens=400, batch=4, validation=validation)


def test_bytes_of_tokens_add_up_to_those_of_the_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(marin.run(TOKENIZER, store=tmp_path, backend="inline").read())
    sizes = token_sizes(tokenizer, 300)
    for text in (*TEXTS, "never seen: 🎉 \x00\r\n"):
        assert sizes[tokenizer.encode(text).ids].sum() == len(text.encode())
    assert sizes[tokenizer.token_to_id("<|endoftext|>")] == 0
    assert sizes[290:].tolist() == [0] * 10


def test_bytes_of_tokens_of_sentencepiece_are_those_of_their_text() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "<0x0A>": 1, "né": 2, "<s>": 3}, "<s>"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens([AddedToken("whole word", special=False)])
    assert token_sizes(tokenizer, 6).tolist() == [4, 1, 3, 0, 10, 0]


def test_step_with_held_out_data_has_the_fingerprint_and_the_output_of_the_one_without(tmp_path: Path) -> None:
    plain, looking = run_of(None), run_of(packed(seed=1))
    assert len({recipe_of(step, lambda step: "parent", ()).fingerprint for step in (plain, looking)}) == 1
    found = [marin.run(step, store=tmp_path / name, backend="inline") for step, name in ((plain, "a"), (looking, "b"))]
    assert found[0].digest == found[1].digest
    events = "".join(path.read_text() for path in sorted((tmp_path / "b" / "runs").rglob("*.jsonl")))
    assert "val_bits_per_byte" in events
    marin.run(run_of(packed(seed=2)), store=tmp_path / "b", backend="inline")
    assert len(list((tmp_path / "b" / "artifacts" / "train").glob("*/attempts/*"))) == 1


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (packed(context=8), "have `context` 8, the data 16"),
        (packed(TrainTokenizer(documents=DOCUMENTS, vocab_size=289)), "have `vocab_size` 289, the data 290"),
        (packed(TOKENIZER.model_copy(update={"eos": "<|stop|>"})), "another vocabulary than the held-out sequences'"),
    ],
)
def test_held_out_data_that_are_packed_otherwise_are_refused(tmp_path: Path, held_out: Shuffle, message: str) -> None:
    with pytest.raises(MarinError, match=message):
        marin.run(run_of(held_out), store=tmp_path, backend="inline")
