"""How fast JSON lines become tokens on disk, beside `datasets.map` and datatrove in the same run.

    python benchmarks/corpus.py --megabytes 62        needs datasets and datatrove; --sides ray,inline runs marin alone

The text is the sources of Python's standard library, over and over with a number before each copy; the tokenizer is
trained on some of it. Each side is a process of its own and gets the same `tokenizer.json`. Wall time is from the first
import of a library to the last commit; processor time and memory (anonymous, at most) are those of all its processes.

*ray* starts its embedded Ray within the time, *again* finds it standing and has another store. *inline* is marin in one
process. *bare* is a loop over the same libraries in one process, which keeps no text, index, digest or count.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

EOS = "<|endoftext|>"
FILES = 8
LOOK_SECONDS = 0.25
BARE_BYTES = 2**20
"""Text that *bare* encodes at once."""


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


class Tree(threading.Thread):
    """Watches a process and all below it: processor seconds of each, and the memory of all together."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root = psutil.Process(root)
        self.seconds: dict[int, float] = {}
        self.peak_bytes = 0
        self.ended = threading.Event()

    def look(self) -> None:
        """Note what is there now."""
        held = 0
        with suppress(psutil.Error):  # it has ended
            for process in (self.root, *self.root.children(recursive=True)):
                with suppress(psutil.Error):
                    times, memory = process.cpu_times(), process.memory_info()
                    self.seconds[process.pid] = times.user + times.system
                    held += memory.rss - memory.shared
        self.peak_bytes = max(self.peak_bytes, held)

    def run(self) -> None:
        """Look again and again."""
        while not self.ended.wait(LOOK_SECONDS):
            self.look()


def watched(command: list[str], megabytes: float) -> None:
    """Run a side, and print what it took by its own clock, and what was seen of its processes from here.

    From here, as a peer that forks must not do so beside a thread.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as side:
        assert side.stdout is not None
        tree = Tree(side.pid)
        tree.start()
        before = 0.0
        for line in side.stdout:
            match line.split():
                case ["begin", _]:
                    tree.look()
                    before, tree.peak_bytes = sum(tree.seconds.values()), 0
                case ["end", name, took, tokens]:
                    tree.look()
                    used, load = sum(tree.seconds.values()) - before, os.getloadavg()[0]
                    print(
                        f"{name:10} {megabytes / float(took):7.1f} MB/s  {float(took):6.1f} s  "
                        f"{megabytes / used:6.1f} MB a core second  {used:6.1f} s  "
                        f"{tree.peak_bytes / 1e6:6,.0f} MB held  {int(tokens):,} tokens  load {load:.0f}",
                        flush=True,
                    )
        tree.ended.set()
        tree.join()
    if side.returncode:
        sys.exit(side.returncode)


@contextmanager
def measured(name: str) -> Iterator[list[int]]:
    """Tell whoever watches when a block begins and ends, and the number of tokens that it puts into the list."""
    tokens: list[int] = []
    print("begin", name, flush=True)
    begin = time.perf_counter()
    yield tokens
    print("end", name, time.perf_counter() - begin, tokens[0], flush=True)


def by_ray(folder: Path, tokenizer: Path) -> None:
    """Run marin on embedded Ray, cold and again."""
    from marin.run.api import open_backend  # noqa: PLC0415  counted

    with measured("ray") as tokens:
        backend = open_backend("ray", None)
        tokens.append(by_marin(folder, tokenizer, backend=backend, store="cold"))
    with measured("again") as tokens:
        tokens.append(by_marin(folder, tokenizer, backend=backend, store="warm"))
    backend.close()


def by_inline(folder: Path, tokenizer: Path) -> int:
    """Run marin in this process."""
    return by_marin(folder, tokenizer, backend="inline", store="inline")


def by_marin(folder: Path, tokenizer: Path, *, backend: object, store: str) -> int:
    """Ingest and tokenize; returns the number of tokens."""
    import marin  # noqa: PLC0415  counted
    from marin.data.arrays import open_array  # noqa: PLC0415  counted
    from marin.data.token_files import TOKENS  # noqa: PLC0415  counted

    documents = marin.Files(url=f"{folder}/*.jsonl", text="text", id="id")
    loaded = marin.LoadTokenizer(url=str(tokenizer), eos=EOS)
    step = marin.Tokenize(documents=documents, tokenizer=loaded)
    tokens = marin.run(step, store=folder / store, backend=backend)  # type: ignore[call-overload]  by name or open
    return sum(open_array(shard.file(TOKENS)).shape[0] for shard in tokens.shards)


def by_bare(folder: Path, tokenizer: Path) -> int:
    """Read, parse, encode and write; returns the number of tokens."""
    import fastokens  # noqa: PLC0415  counted
    import numpy as np  # noqa: PLC0415  counted
    import orjson  # noqa: PLC0415  counted

    encoder = fastokens.Tokenizer.from_file(str(tokenizer))
    end, number = encoder.token_to_id(EOS), 0
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines, (folder / f"{path.name}.ids").open("wb") as file:
            while held := lines.readlines(BARE_BYTES):
                texts = [orjson.loads(line)["text"] for line in held]
                ids, bounds = encoder.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
                stops = np.frombuffer(bounds, "<u8")[1:].astype(np.int64)
                ended = np.insert(np.frombuffer(ids, "<u4").astype("<u2"), stops, end)
                file.write(ended.data)
                number += len(ended)
    return number


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
    return sum(path.stat().st_size for path in (folder / "trove").glob("*.ds")) // 2


SIDES: dict[str, Callable[[Path, Path], int]] = {
    "inline": by_inline,
    "bare": by_bare,
    "datasets": by_datasets,
    "datatrove": by_datatrove,
}


def run_side(name: str, folder: Path, tokenizer: Path) -> None:
    """Measure one side, in this process."""
    if name == "ray":
        by_ray(folder, tokenizer)
        return
    with measured(name) as tokens:
        tokens.append(SIDES[name](folder, tokenizer))


def train(folder: Path) -> Path:
    """Write `tokenizer.json`, and return where it is."""
    import marin  # noqa: PLC0415  no side's time

    documents = marin.Files(url=f"{folder}/0.jsonl", text="text")
    trained = marin.TrainTokenizer(documents=documents, vocab_size=4096, every=8)
    path = folder / "tokenizer.json"
    path.write_bytes(marin.run(trained, store=folder / "training", backend="inline").read())
    return path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=62)
    parser.add_argument("--sides", default="ray,inline,bare,datasets,datatrove")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    if options.side:
        run_side(options.side, options.folder, options.folder / "tokenizer.json")
        return
    folder = Path(tempfile.mkdtemp(prefix="marin-corpus-"))
    size = write_corpus(folder, options.megabytes)
    train(folder)
    for name in options.sides.split(","):
        watched([sys.executable, __file__, "--side", name, "--folder", str(folder)], size)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
