"""What an unchanged rerun over many shards costs, and what one changed file costs.

    python benchmarks/rerun.py --shards 10000

A corpus of so many files, a shard each, is ingested and tokenized in one process. Then fresh processes run the same
pipeline again: unchanged; with one file touched (its time alone is new); and with one file changed. *Opened* are files
of the corpus, and data files of the store: an unchanged rerun must open none of either. *Bare* asks the system for the
size and time of each file, and parses the two manifests.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

EOS = "<|endoftext|>"
FILE_BYTES = 1000
"""A file of the size of a shard is one."""
DATA = (".parquet", ".npy", ".arrow")


def write_corpus(folder: Path, number: int) -> None:
    """Write files of one line of JSON each."""
    folder.mkdir()
    for index in range(number):
        text = json.dumps({"text": f"document {index:06d} says nothing " * 30})
        (folder / f"{index:06d}.jsonl").write_text(text.ljust(FILE_BYTES))


def run(folder: Path) -> dict[str, Any]:
    """Run the pipeline, and return seconds, shards computed of each step, and what was opened."""
    opened: Counter[str] = Counter()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(folder)):
            kind = "corpus" if arguments[0].endswith(".jsonl") and "/corpus/" in arguments[0] else "store"
            opened[kind] += kind == "corpus" or arguments[0].endswith(DATA)

    begin = time.perf_counter()
    import marin  # noqa: PLC0415  counted
    from marin.run.api import run_plan  # noqa: PLC0415  counted

    imported = time.perf_counter() - begin
    sys.addaudithook(note)
    documents = marin.Files(url=f"{folder}/corpus/*.jsonl", text="text", shard_bytes=FILE_BYTES)
    tokenizer = marin.LoadTokenizer(url=str(folder / "tokenizer.json"), eos=EOS)
    planned = marin.plan(marin.Tokenize(documents=documents, tokenizer=tokenizer), store=folder / "store")
    result = run_plan(planned, store=folder / "store", backend="inline")
    took, used = time.perf_counter() - begin, time.process_time()
    shards = {step.name: step.shards.get("computed", 0) for step in result.steps if step.name != "load-tokenizer"}
    return {
        "took": took,
        "used": used,
        "imported": imported,
        "state": result.state,
        "computed": shards,
        "opened": dict(opened),
    }


def bare(folder: Path) -> float:
    """Return the seconds of the least that could be done."""
    begin = time.perf_counter()
    sizes = [(entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder / "corpus")]
    manifests = [json.loads(path.read_bytes()) for path in (folder / "store").glob("artifacts/*/*/manifest.json")]
    assert sizes
    assert manifests
    return time.perf_counter() - begin


def show(name: str, folder: Path) -> None:
    """Run in a fresh process, and print."""
    command = [sys.executable, __file__, "--folder", str(folder)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(
        f"{name:10} {found['took']:6.2f} s, of which {found['imported']:.2f} s imports marin;  "
        f"processor {found['used']:.2f} s;  {found['state']}  "
        f"computed {found['computed']}  opened {found['opened']}  load {os.getloadavg()[0]:.0f}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(run(options.folder)))
        return
    import marin  # noqa: PLC0415  no time of a run

    folder = Path(tempfile.mkdtemp(prefix="marin-rerun-"))
    write_corpus(folder / "corpus", options.shards)
    texts = marin.Records(texts=tuple(f"some text {number} to train on " * 3 for number in range(50)))
    trained = marin.TrainTokenizer(documents=texts, vocab_size=300)
    (folder / "tokenizer.json").write_bytes(marin.run(trained, store=folder / "training", backend="inline").read())
    show("first", folder)
    for _ in range(3):
        show("unchanged", folder)
        print(f"{'bare':10} {bare(folder):6.2f} s")
    (folder / "corpus" / "000000.jsonl").touch()
    show("touched", folder)
    (folder / "corpus" / "000001.jsonl").write_text('{"text": "another document"}'.ljust(FILE_BYTES))
    show("changed", folder)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
