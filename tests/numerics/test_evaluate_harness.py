"""The harness adapter beside the harness' own hf backend, on a tiny random Llama. Needs the extra `eval`."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

pytest.importorskip("lm_eval")
pytest.importorskip("accelerate")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from marin import Decoder, fs
from marin.evaluate.checkpoint import load_checkpoint
from marin.evaluate.harness import HarnessModel, harness_scores
from marin.export.hugging_face import export_checkpoint
from marin.model.hub import to_hugging_face_config
from marin.model.init import build
from marin.model.weights import write_tensors

pytestmark = pytest.mark.slow

CONTEXT = 64
DECODER = Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=300, context=CONTEXT, tied=False)
TEXTS = ["Question: which planet is red?\nAnswer: Mars", "naïve café 東京 tower", "a  b   c\n\n\td", "x = 1\n" * 40]
PAIRS = [
    ("Question: which planet is red?\nAnswer:", " Mars"),
    ("Question: which planet is red?\nAnswer:", " Venus"),
    ("trailing space ", "moved"),
    ("", "nothing before"),
    ("x = 1\n" * 60, "y = 2"),
    ("naïve café", " 東京"),
    ("x", "\n\n\ty"),
]


def instances(kind: str, arguments: list[tuple[object, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


@pytest.fixture(scope="module", params=["no start token", "start token"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[HarnessModel, HFLM]:
    folder = tmp_path_factory.mktemp("harness")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    config = dict(to_hugging_face_config(DECODER, eos_id=0))
    if request.param == "start token":
        tokenizer.post_processor = processors.TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 0)])
    torch.manual_seed(0)
    model = build(DECODER, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    output = fs.FolderOutput(str(folder / "checkpoint"))
    with output.open("model.safetensors") as file:
        write_tensors(file, model.state_dict())
    output.write("config.json", json.dumps(config).encode())
    output.write("tokenizer.json", tokenizer.to_str().encode())
    exported = fs.FolderOutput(str(folder / "export"))
    export_checkpoint(output.contents(), exported, dtype="float32", license=None)
    # Its cache of logits takes windows of a repetitive text for one another where context and continuation together are
    # equal and the border is not (lm-eval 0.4.13: 1.9 nats on the last text), so it is off.
    theirs = HFLM(pretrained=str(folder / "export"), device="cpu", dtype="float32", batch_size=4, logits_cache=False)
    return HarnessModel(load_checkpoint(output.contents())), theirs


def test_log_likelihoods_equal_those_of_the_hf_backend(both: tuple[HarnessModel, HFLM]) -> None:
    ours, theirs = (model.loglikelihood(instances("loglikelihood", list(PAIRS))) for model in both)
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_rolling_log_likelihoods_equal_those_of_the_hf_backend(both: tuple[HarnessModel, HFLM]) -> None:
    texts = [(text,) for text in TEXTS]
    ours, theirs = (model.loglikelihood_rolling(instances("loglikelihood_rolling", texts)) for model in both)
    assert ours == pytest.approx(theirs, abs=3e-4)


def test_completions_equal_those_of_the_hf_backend(both: tuple[HarnessModel, HFLM]) -> None:
    options = {"until": ["="], "max_gen_toks": 10}
    wanted = [(text, options) for text in ["Question:", "x = 1\n" * 40, "naïve"]]
    ours, theirs = (model.generate_until(instances("generate_until", wanted)) for model in both)
    assert ours == theirs


def test_task_scores_equal_those_of_the_hf_backend(both: tuple[HarnessModel, HFLM], tmp_path: Path) -> None:
    rows = [
        {"q": f"which planet is number {number}?", "choices": ["Mars", "Venus", "Earth and moon"], "gold": number % 3}
        for number in range(30)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "planets",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "fewshot_split": "test",
        "num_fewshot": 2,
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{q}}\nAnswer:",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    ours, theirs = (harness_scores(model, [task], bootstrap_iters=0) for model in both)  # type: ignore[arg-type]
    assert ours.metrics == theirs.metrics
    assert 0 <= ours.metrics["planets/acc"] <= 1
    assert ours.details["lm_eval"]
