"""lm-evaluation-harness' tasks by name, from a folder of its YAML files or from those it comes with.

Invariant: all of a task's items are scored or none; before that, an answerer that knows the gold must score 1 on the
first of them. Data come from local files: a path in a YAML file that is one of the folder's own is that file.
Needs the extra `eval`.
"""

import contextlib
import hashlib
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError, InputError, did_you_mean
from marin.base.json import Json
from marin.evaluate.canaries import NUM_ITEMS, CanaryError
from marin.evaluate.choices import ItemRow
from marin.evaluate.harness import HarnessModel, harness_results
from marin.evaluate.loss import ScoreSet
from marin.evaluate.tasks import ITEMS, item_table
from marin.graph.files import FileRef, Output, Reader

_FAR = -1e4
_MEASURES = ("acc", "acc_norm")


@contextlib.contextmanager
def laid_out(files: Sequence[FileRef]) -> Iterator[Path | None]:
    """Give a folder of these files that lasts as long as the block; None where there are none."""
    if not files:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="marin-harness-") as folder:
        lay_out(files, fs.FileReader(), Path(folder))
        yield Path(folder)


def lay_out(files: Sequence[FileRef], reader: Reader, folder: Path) -> None:
    """Write pinned files to a folder, their paths in its YAML files made absolute.

    A path counts where it stands alone, between quotes, commas or brackets, as in `data_files: {test: rows.jsonl}`.
    """
    root = Path(_common([file.path for file in files]))
    names = {str(Path(file.path).relative_to(root)): file for file in files}
    data = [re.escape(name) for name in names if not name.endswith((".yaml", ".py"))]
    alone = re.compile(
        rf"(?<=[\s'\"\[,:])(?:\./)?({'|'.join(sorted(data, key=len, reverse=True))})(?=$|[\s'\"\],}}])", re.M
    )
    for name, file in names.items():
        content = reader.read(file)
        if name.endswith(".yaml") and data:
            content = alone.sub(lambda found: str(folder / found[1]), content.decode()).encode()
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _common(paths: Sequence[str]) -> str:
    folders = [Path(path).parent.parts for path in paths]
    shared = []
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return str(Path(*shared)) if shared else ""


def score_tasks(
    model: HarnessModel,
    names: Sequence[str],
    output: Output,
    *,
    folder: Path | None,
    num_fewshot: int | None,
    limit: int | None,
    chat_template: bool,
) -> ScoreSet:
    """Return the scores as `TASK/METRIC`, and write `items.parquet`.

    Raises InputError for names that there are not and for data that cannot be had, CanaryError for a task that does not
    give its gold full marks, DataError for scores that are no numbers.
    """
    manager = _manager(names, folder)
    loaded = _load(manager, names)
    checked = {name: _check_gold(task) for name, task in loaded.items()}
    results = harness_results(
        model,
        list(names),
        task_manager=manager,
        num_fewshot=num_fewshot,
        limit=limit,
        apply_chat_template=chat_template,
        fewshot_as_multiturn=chat_template,
        bootstrap_iters=0,
    )
    rows = [_row(name, sample) for name, samples in results.samples.items() for sample in samples]
    if bad := [name for name, value in results.scores.metrics.items() if math.isnan(value)]:
        raise DataError(
            f"the score `{bad[0]}` is no number", where="EvaluateHarness.tasks", hint="look at the task's metrics"
        )
    with output.open(ITEMS) as file:
        parquet.write_table(item_table(rows), file, compression="zstd")
    details: dict[str, Json] = {
        **results.scores.details,
        "num_fewshot": num_fewshot,
        "limit": limit,
        "chat_template": model.chat_template_name if chat_template else None,
        "canary_items": dict(checked),
        "items": {name: len(samples) for name, samples in results.samples.items()},
    }
    return ScoreSet(results.scores.metrics, details)


def _manager(names: Sequence[str], folder: Path | None) -> TaskManager:
    """Return an index of the folder alone where it has all names; of the harness' thousands of files otherwise."""
    if folder is not None:
        own = TaskManager(include_path=str(folder), include_defaults=False)
        if {*names} <= {*own.all_tasks, *own.all_groups, *own.all_tags}:
            return own
    return TaskManager(include_path=None if folder is None else str(folder))


def _load(manager: TaskManager, names: Sequence[str]) -> Mapping[str, Any]:  # Any: the harness' tasks
    known = {*manager.all_tasks, *manager.all_groups, *manager.all_tags}
    if unknown := [name for name in names if name not in known]:
        raise InputError(
            f"lm-evaluation-harness has no task `{unknown[0]}`",
            where="EvaluateHarness.tasks",
            hint=did_you_mean(unknown[0], known) or "give the folder of its YAML file as `url`",
        )
    try:
        return manager.load(list(names))["tasks"]  # type: ignore[no-any-return]  # the harness' dict
    except (OSError, ValueError) as error:  # a hub that is not reached, a data set that is not in the cache
        raise InputError(
            f"the data of {', '.join(names)} could not be had: {error}",
            where="EvaluateHarness.tasks",
            hint="give a folder as `url` whose YAML file includes the task, with `dataset_path: json` and local files",
        ) from error


class _Gold(LM):  # type: ignore[misc]  # the harness has no types
    """Finds the gold certain and all else nearly impossible."""

    def __init__(self, task: Any) -> None:  # Any: the harness' task
        super().__init__()
        self._task = task

    def loglikelihood(self, requests: Sequence[Instance], **ignored: object) -> list[tuple[float, bool]]:
        """Return 0 for the gold."""
        golds = [self._task.doc_to_target(request.doc) for request in requests]
        return [(0.0 if request.idx == gold else _FAR, False) for request, gold in zip(requests, golds, strict=True)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], **ignored: object) -> list[float]:
        """Is never asked: tasks with choices have no such requests."""
        raise NotImplementedError

    def generate_until(self, requests: Sequence[Instance], **ignored: object) -> list[str]:
        """Is never asked: tasks with choices have no such requests."""
        raise NotImplementedError


def _check_gold(task: Any) -> int:  # Any: the harness' task
    """Return on how many items the gold got full marks; 0 for tasks whose gold is no single index."""
    if task.OUTPUT_TYPE != "multiple_choice" or task.multiple_input or task.multiple_target:
        return 0
    count = min(NUM_ITEMS, len(task.eval_docs))
    if not all(isinstance(task.doc_to_target(doc), int) for doc in task.eval_docs.select(range(count))):
        return 0
    results = lm_eval.simple_evaluate(model=_Gold(task), tasks=[task], limit=count, num_fewshot=0, bootstrap_iters=0)
    acc = results["results"][task.task_name].get("acc,none")
    if acc is not None and acc != 1.0:
        raise CanaryError(
            f"the canary failed: a model that always prefers the gold scores {acc:g} in `{task.task_name}`",
            where="EvaluateHarness.tasks",
            hint="look at the task's doc_to_target and doc_to_choice",
        )
    return count if acc is not None else 0


def _row(name: str, sample: Mapping[str, Any]) -> ItemRow:  # Any: the harness' record of an item
    prompt = "\0".join(str(argument[0]) for argument in sample["arguments"])
    row = ItemRow(task=name, id=str(sample["doc_id"]), cut=0)
    row["prompt_digest"] = hashlib.sha256(prompt.encode()).hexdigest()[:16]
    responses = [response[0] for response in sample["resps"]]
    if all(isinstance(response, tuple | list) for response in responses):
        row["log_likelihoods"] = [float(response[0]) for response in responses]
        row["choices"] = [str(argument[1]) for argument in sample["arguments"]]
        row["chosen"] = row["log_likelihoods"].index(max(row["log_likelihoods"]))
    elif isinstance(responses[0], str):
        row["completion"] = responses[0]
    if isinstance(sample["target"], int) and "choices" in row:
        row["gold"] = sample["target"]
    for measure in _MEASURES:
        if isinstance(sample.get(measure), int | float):
            row[measure] = float(sample[measure])  # type: ignore[literal-required]
    if "acc" in row:
        row["correct"] = row["acc"] == 1.0
    return row
