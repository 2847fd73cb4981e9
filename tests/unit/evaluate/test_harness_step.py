"""`EvaluateHarness` on tasks from a folder, offline. Needs the extra `eval`."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("lm_eval")

import marin
from marin import EvaluateHarness, Step
from marin.base.errors import StepError
from marin.evaluate.checkpoint import LoadedCheckpoint

ROWS = [{"q": f"is {n} red?", "choices": ["Mars", "Venus", "the moon"], "gold": n % 3} for n in range(7)]
YAML = """task: planets
dataset_path: json
dataset_kwargs:
  data_files: {test: data/rows.jsonl}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{q}}\\nAnswer:"
doc_to_choice: "choices"
doc_to_target: "gold"
metric_list:
  - metric: acc
  - metric: acc_norm
metadata:
  version: 2.5
"""


def folder(tmp_path: Path, yaml: str = YAML) -> Path:
    (tmp_path / "tasks" / "data").mkdir(parents=True)
    (tmp_path / "tasks" / "planets.yaml").write_text(yaml)
    (tmp_path / "tasks" / "data" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path / "tasks"


def evaluated(step: Step[marin.Scores], tmp_path: Path) -> marin.Scores:
    return marin.run(step, store=tmp_path / "store", backend="inline")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


@torch.no_grad()
def test_harness_step_scores_as_a_direct_computation_says(
    tmp_path: Path, trained: Step[marin.Checkpoint], checkpoint: LoadedCheckpoint
) -> None:
    step = EvaluateHarness(checkpoint=trained, tasks=["planets"], url=str(folder(tmp_path)), num_fewshot=0)
    scores = evaluated(step, tmp_path)
    details: Any = json.loads(scores.contents.reader.read(scores.file("scores.json")))
    assert details["task_versions"] == {"planets": "2.5"}
    assert details["canary_items"] == {"planets": 7}
    assert details["items"] == {"planets": 7}
    assert details["chat_template"] is None
    rows = pq.read_table(scores.file("items.parquet").url).to_pylist()
    right = []
    for row, asked in zip(rows, ROWS, strict=True):
        before = checkpoint.encode(f"Question: {asked['q']}\nAnswer:")  # as in the harness, no token stands before it
        expected = []
        for choice in asked["choices"]:
            ids = [*before, *checkpoint.encode(f" {choice}")]
            values = torch.log_softmax(checkpoint.model(torch.tensor([ids[:-1]]))[0].double(), dim=1)
            expected.append(float(values[torch.arange(len(ids) - 1), torch.tensor(ids[1:])][len(before) - 1 :].sum()))
        assert row["log_likelihoods"] == pytest.approx(expected, abs=1e-4)
        right.append(expected.index(max(expected)) == asked["gold"])
        assert row["correct"] == right[-1]
    assert scores.metrics["planets/acc"] == pytest.approx(sum(right) / 7)


@pytest.mark.parametrize(
    ("tasks", "yaml", "message"),
    [
        (["planet"], YAML, "has no task `planet`"),
        (["planets"], YAML.replace("data/rows.jsonl", "elsewhere.jsonl"), "could not be had"),
    ],
)
def test_harness_task_that_cannot_be_asked_fails_by_name(
    tmp_path: Path, trained: Step[marin.Checkpoint], tasks: list[str], yaml: str, message: str
) -> None:
    step = EvaluateHarness(checkpoint=trained, tasks=tasks, url=str(folder(tmp_path, yaml)))
    with pytest.raises(StepError, match=message):
        evaluated(step, tmp_path)


def test_harness_step_with_a_chat_template_that_is_not_there_fails(
    tmp_path: Path, trained: Step[marin.Checkpoint]
) -> None:
    step = EvaluateHarness(checkpoint=trained, tasks=["planets"], url=str(folder(tmp_path)), chat_template=True)
    with pytest.raises(StepError, match="has no chat template"):
        evaluated(step, tmp_path)


def test_harness_step_moved_to_another_folder_is_the_same(tmp_path: Path, trained: Step[marin.Checkpoint]) -> None:
    one, other = folder(tmp_path / "one"), folder(tmp_path / "other")
    first, second = (EvaluateHarness(checkpoint=trained, tasks=["planets"], url=str(url)) for url in (one, other))
    assert evaluated(first, tmp_path).digest == evaluated(second, tmp_path).digest
    assert marin.plan(second, store=tmp_path / "store").steps[-1].state == "cached"
