"""CPU seconds to score multiple choice: marin's scorer beside lm-evaluation-harness' hf backend, on the same texts.

    python benchmarks/scoring.py --model FOLDER --items arc.jsonl --num-items 30 --shots 0 5

The model is a Hugging Face folder, which both sides read; items have `question`, `choices` (texts) and `gold` (index).
Needs the extra eval, transformers and accelerate. The peer runs once at each batch size, in fp32; its best counts.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

import marin
from marin.evaluate.checkpoint import load_checkpoint
from marin.evaluate.choices import encode_items, score_items
from marin.evaluate.items import build_items
from marin.evaluate.scorer import ModelPredictor
from marin.evaluate.task import Choices, Form


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--items", type=Path, required=True, help="JSON lines")
    parser.add_argument("--num-items", type=int, default=30)
    parser.add_argument("--shots", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--store", default="/tmp/marin-scoring")
    options = parser.parse_args()
    loaded = marin.LoadModel(url=options.model)
    checkpoint = load_checkpoint(marin.run(loaded, store=options.store, backend="inline").contents)
    rows = [json.loads(line) for line in options.items.read_text().splitlines()]
    print(f"{torch.get_num_threads()} threads, {options.num_items} items")
    for shots in options.shots:
        form = Form(prompt="Question: {question}\nAnswer:", answer=Choices(choices="choices", gold="gold"), shots=shots)
        items = build_items(form, rows, None, range(options.num_items))
        begin = time.process_time()
        requests = encode_items(checkpoint, items, " ")
        ours = score_items(
            ModelPredictor(checkpoint.model), items, requests, context=checkpoint.context, batch_tokens=16_384
        )
        seconds = time.process_time() - begin
        likely = [value for row in ours for value in row["log_likelihoods"]]
        print(f"{shots} shots: marin {seconds:.1f} s", flush=True)
        arguments = [(item.prompt, f" {answer}") for item in items for answer in item.answers]
        for batch_size in options.batch_sizes:
            peer = HFLM(pretrained=options.model, device=str(checkpoint.device), dtype="float32", batch_size=batch_size)
            asked = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(arguments)]
            begin = time.process_time()
            theirs = [value for value, _ in peer.loglikelihood(asked, disable_tqdm=True)]
            taken = time.process_time() - begin
            far = max(abs(one - two) for one, two in zip(likely, theirs, strict=True))
            print(f"  hf backend, batch {batch_size}: {taken:.1f} s, {taken / seconds:.1f} x; farthest {far:.1e} nats")
            answers = iter(theirs)
            right = sum(
                max(range(len(values)), key=values.__getitem__) == item.gold
                for item in items
                for values in [[next(answers) for _ in item.answers]]
            )
            print(f"    right: {right}, marin {sum(row['correct'] for row in ours)}")


if __name__ == "__main__":
    main()
