"""`FineTune`: what has loss, what the result keeps of its base, what is refused; a toy task learnt to the letter."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marin
from marin import (
    AdamW,
    Chat,
    Checkpoint,
    Conversations,
    Decoder,
    Export,
    FineTune,
    Generate,
    LoadModel,
    Lora,
    Pack,
    Records,
    Shuffle,
    Step,
    Tokenize,
    Train,
    TrainTokenizer,
)
from marin.base.errors import ConfigurationError, MarinError
from marin.data.loader import SequenceData
from marin.model.hub import from_hugging_face_config, load_model
from marin.model.weights import read_tensors

TEMPLATE = (
    "{{ eos_token }}{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\nA:"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
WORDS = ("red", "blue", "green", "dog", "cat")
ANSWERS = {f"what follows {first}?": second for first, second in zip(WORDS, (*WORDS[2:], *WORDS[:2]), strict=True)}
TEXTS = tuple(f"the {number} of {number * 7 % 11} and {word}" for number in range(9) for word in WORDS)
DOCUMENTS = Records(texts=(*TEXTS, *(f"Q: {question}\nA: {answer}" for question, answer in ANSWERS.items())))
TOKENIZER = TrainTokenizer(documents=DOCUMENTS, vocab_size=280)
BASE = Train(
    data=Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=TOKENIZER), context=64, seed=0),
    model=Decoder(layers=1, width=48, heads=2),
    optimizer=AdamW(lr=0.01),
    tokens=64 * 8 * 60,
    batch=8,
)
FULL = AdamW(lr=0.01)
ADAPTERS = Lora(rank=8, alpha=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose base and data are made once, with the conversations beside it."""
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("tune")
    lines = [
        json.dumps({"messages": [{"role": "user", "content": each}, {"role": "assistant", "content": answer}]})
        for each, answer in ANSWERS.items()
    ]
    (made / "chat.jsonl").write_text("\n".join(lines))
    run(BASE, made)
    return made


def rows_of(folder: Path, *, context: int = 48, tokenizer: Step[marin.Tokenizer] = TOKENIZER) -> Pack:
    chat = Chat(documents=Conversations(url=str(folder / "chat.jsonl")), tokenizer=tokenizer, template=TEMPLATE)
    return Pack(tokens=chat, context=context, seed=0, method="best_fit")


def tuned(folder: Path, **options: Any) -> FineTune:
    plain = {"init": BASE, "data": rows_of(folder), "optimizer": FULL, "epochs": 1.0, "batch": 8}
    return FineTune(**{**plain, **options})


def run(step: Step[Any], folder: Path) -> Any:
    torch.set_num_threads(1)
    return marin.run(step, store=folder / "store", backend="inline")


def json_of(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    return json.loads(checkpoint.contents.reader.read(checkpoint.file(name)))


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return read_tensors(checkpoint.contents.reader.read(checkpoint.file("model.safetensors")), where="")


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": AdamW(lr=0.005), "lora": ADAPTERS}],
    ids=["whole", "adapters"],
)
def test_conversations_are_learnt_to_the_letter(folder: Path, options: dict[str, Any]) -> None:
    """And what the model said while it was trained is what `Generate` makes it say in the end."""
    prompts = [f"Q: {question}\nA:" for question in ANSWERS]
    model = tuned(folder, epochs=250.0, batch=4, prompts=prompts, sample_every=1000, sample_tokens=12, **options)
    written = run(Generate(checkpoint=model, prompts=prompts, max_tokens=12), folder).to_rows()
    assert [row["completion"] for row in written] == [f" {answer}" for answer in ANSWERS.values()]
    assert all(row["ended"] for row in written)
    lines = "".join(path.read_text() for path in sorted((folder / "store" / "runs").rglob("*.jsonl"))).splitlines()
    said = [event["sample"] for event in map(json.loads, lines) if event["kind"] == "sample"]
    assert [sample["prompt"] for sample in said][-len(prompts) :] == prompts
    assert [sample["completion"] for sample in said][-len(prompts) :] == [row["completion"] for row in written]


@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["whole", "adapters"])
def test_first_step_of_one_epoch_has_the_base_s_loss_on_each_answer_alone(folder: Path, lora: Lora | None) -> None:
    """Against every conversation by itself, through the base: so masks, packing and positions are what they say."""
    base, data = run(BASE, folder), run(rows_of(folder), folder)
    model = load_model(from_hugging_face_config(json_of(base, "config.json")), weights(base), torch.device("cpu"))
    source = SequenceData(data.shards, 48)
    batch = source.batch(np.arange(len(source)), segments=True)
    total, number = 0.0, 0
    for row in range(len(source)):
        for segment in np.unique(batch.segments[row]):
            here = batch.segments[row] == segment
            tokens, targets = (torch.from_numpy(each[row][here])[None] for each in (batch.tokens, batch.targets))
            total += float(model.token_losses(tokens, targets).double().sum())
            number += int((targets != -100).sum())
    record = json_of(run(tuned(folder, lora=lora, batch=len(source)), folder), "training.json")
    assert (record["steps"], record["tokens"]) == (1, number)
    assert 0 < number < (batch.segments >= 0).sum()
    assert record["curve"][0]["loss"] == pytest.approx(total / number, rel=1e-5)


def test_epochs_are_rounded_up_to_whole_steps(folder: Path) -> None:
    num_rows = len(SequenceData(run(rows_of(folder), folder).shards, 48))
    assert run(tuned(folder, batch=num_rows, epochs=2.5), folder).meta["steps"] == 3


def test_result_keeps_context_and_special_tokens_of_its_base(folder: Path) -> None:
    base, result = run(BASE, folder), run(tuned(folder, lora=ADAPTERS), folder)
    assert json_of(result, "config.json") == json_of(base, "config.json")
    assert json_of(result, "training.json")["order"]["init"] == base.digest
    assert result.meta["parameters"] == base.meta["parameters"]


def test_model_from_a_folder_is_tuned_as_the_run_it_came_from(folder: Path) -> None:
    exported = run(Export(checkpoint=BASE), folder)
    (folder / "model").mkdir()
    for file in exported.contents.files:
        (folder / "model" / file.path).write_bytes(exported.contents.reader.read(file))
    config = json.loads((folder / "model" / "config.json").read_text())
    ends = {"bos_token_id": 7, "eos_token_id": 9}
    (folder / "model" / "config.json").write_text(json.dumps({**config, **ends}))
    direct = run(tuned(folder, lora=ADAPTERS), folder)
    through = run(tuned(folder, lora=ADAPTERS, init=LoadModel(url=str(folder / "model"))), folder)
    assert all(torch.equal(weights(direct)[name], tensor) for name, tensor in weights(through).items())
    kept = json_of(through, "config.json")
    assert (kept["bos_token_id"], kept["eos_token_id"]) == (7, [json_of(direct, "config.json")["eos_token_id"], 9])


@pytest.mark.parametrize(
    ("change", "message", "where"),
    [
        ({"context": 65}, "sequences of 65 tokens, the initial checkpoint has positions for 64", "FineTune.init"),
        ({"tokenizer": TOKENIZER.model_copy(update={"vocab_size": 279})}, "another vocabulary", "FineTune.init"),
    ],
)
def test_rows_that_are_not_the_model_s_are_refused(folder: Path, change: Any, message: str, where: str) -> None:
    with pytest.raises(MarinError, match=message) as caught:
        run(tuned(folder, data=rows_of(folder, **change)), folder)
    assert where in caught.value.where


def test_adapters_that_the_model_has_no_place_for_are_refused(folder: Path) -> None:
    with pytest.raises(MarinError, match="no `c_attn`") as caught:
        run(tuned(folder, lora=Lora(rank=1, alpha=1, targets=["q_proj", "c_attn"])), folder)
    assert "FineTune.lora.targets" in caught.value.where


@pytest.mark.parametrize(
    "wrong", [{"rank": 0, "alpha": 1}, {"rank": 1, "alpha": 0}, {"rank": 1, "alpha": 1, "dropout": 1}]
)
def test_adapters_without_a_meaning_are_refused_when_they_are_written_down(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Lora(**wrong)


def test_more_ranks_than_rows_of_a_step_are_refused_when_planned(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text("{}")
    with pytest.raises(ConfigurationError, match="cannot feed 9 ranks"):
        tuned(tmp_path).on(ranks=9)
