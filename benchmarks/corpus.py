"""How fast JSON lines become tokens on disk with two processes, beside `datasets.map` and datatrove in the same run.

    python benchmarks/corpus.py --megabytes 62        needs datasets and datatrove; --peers "" runs marin alone

The text is the sources of Python's standard library, over and over with a number before each copy; the tokenizer is
trained on some of it. Wall time, with the start of processes and the commit: *marin* starts its embedded Ray within the
time, *again* finds it standing, and has another store. Each side gets the same `tokenizer.json`.
"""

import argparse
import json
import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import marin
from marin.data.arrays import open_array
from marin.data.token_files import TOKENS
from marin.run.api import open_backend
from marin.run.backend import Backend

EOS = "<|endoftext|>"
FILES = 8


def write_corpus(folder: Path, megabytes: float) -> float:
    """Write JSON lines in files of about the same size; returns megabytes of text."""
    paths = [path for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")) if "-packages" not in str(path)]
    texts = [path.read_text(errors="ignore") for path in paths]
    files = [(folder / f"{number}.jsonl").open("w") for number in range(FILES)]
    size, copy = 0, 0
    while size < megabytes * 1e6:
        for number, text in enumerate(texts):
            held = f"# {copy}\n{text}"
            files[number % FILES].write(json.dumps({"id": f"{copy}-{number}", "text": held}) + "\n")
            size += len(held.encode())
        copy += 1
    for file in files:
        file.close()
    return size / 1e6


def by_marin(folder: Path, tokenizer: Path, *, backend: Backend, store: str) -> int:
    """Ingest and tokenize on embedded Ray; returns the number of tokens."""
    documents = marin.Files(url=f"{folder}/*.jsonl", text="text", id="id")
    loaded = marin.LoadTokenizer(url=str(tokenizer), eos=EOS)
    tokens = marin.run(marin.Tokenize(documents=documents, tokenizer=loaded), store=folder / store, backend=backend)
    return sum(open_array(shard.file(TOKENS)).shape[0] for shard in tokens.shards)


def by_datasets(folder: Path, tokenizer: Path) -> int:
    """Load, map in batches over two processes and save; returns the number of tokens."""
    from datasets import load_dataset  # noqa: PLC0415  optional
    from tokenizers import Tokenizer  # noqa: PLC0415  optional

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.encode_special_tokens = True
    end = encoder.token_to_id(EOS)

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {
            "ids": [[*each.ids, end] for each in encoder.encode_batch_fast(batch["text"], add_special_tokens=False)]
        }

    paths = sorted(str(path) for path in folder.glob("*.jsonl"))
    rows = load_dataset("json", data_files=paths, split="train", cache_dir=str(folder / "datasets"))
    mapped = rows.map(encode, batched=True, num_proc=2, remove_columns=["id", "text"])
    mapped.save_to_disk(str(folder / "mapped"))
    return sum(map(len, mapped["ids"]))


def by_datatrove(folder: Path, tokenizer: Path) -> int:
    """Read and tokenize in two processes; returns the number of tokens."""
    from datatrove.executor import LocalPipelineExecutor  # noqa: PLC0415  optional
    from datatrove.pipeline.readers import JsonlReader  # noqa: PLC0415  optional
    from datatrove.pipeline.tokens import DocumentTokenizer  # noqa: PLC0415  optional

    source = folder / "source"
    source.mkdir()
    for path in folder.glob("*.jsonl"):
        os.link(path, source / path.name)
    writer = DocumentTokenizer(
        output_folder=str(folder / "trove"),
        tokenizer_name_or_path=str(tokenizer),
        eos_token=EOS,
        shuffle_documents=False,
    )
    LocalPipelineExecutor(
        pipeline=[JsonlReader(str(source)), writer], tasks=2, workers=2, logging_dir=str(folder / "logs")
    ).run()
    return sum(path.stat().st_size for path in (folder / "trove").glob("*.ds")) // np.dtype("<u2").itemsize


PEERS: dict[str, Callable[[Path, Path], int]] = {"datasets": by_datasets, "datatrove": by_datatrove}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=62)
    parser.add_argument("--peers", default="datasets,datatrove")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="marin-corpus-"))
    size = write_corpus(folder, options.megabytes)
    documents = marin.Files(url=f"{folder}/0.jsonl", text="text")
    trained = marin.TrainTokenizer(documents=documents, vocab_size=4096, every=8)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(marin.run(trained, store=folder / "training", backend="inline").read())
    backend = open_backend("ray", None)
    sides: dict[str, Callable[[Path, Path], int]] = {
        "marin": partial(by_marin, backend=backend, store="cold"),
        "again": partial(by_marin, backend=backend, store="warm"),
        **{name: PEERS[name] for name in options.peers.split(",") if name},
    }
    for name, side in sides.items():
        begin = time.perf_counter()
        number = side(folder, tokenizer)
        took = time.perf_counter() - begin
        print(f"{name:10} {size / took:7.1f} MB/s  {took:6.1f} s  {number:,} tokens", flush=True)
    backend.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
