"""How fast training rows are read from the page cache, beside the data set of MosaicML streaming on the same tokens.

    python benchmarks/loading.py --folder /dev/shm/loading        needs mosaicml-streaming

Both give batches of 64 rows of 2,048 tokens and their targets, int64; the peer's rows are stacked, cast and cut in
numpy, which its own loader would do in torch. Each side reads in a process of its own; *first* and *again* are two
epochs, in processor time. A third one is watched for anonymous memory, less that before (what is mapped is the page
cache's).
"""

import argparse
import multiprocessing
import shutil
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
from shuffle import CONTEXT, make_shard, own_memory

from marin import fs
from marin.data import shuffle
from marin.data.hashes import bundle
from marin.data.loader import SequenceData
from marin.graph.files import Shard

ROWS = 64
PEER_SHARD = "64mb"
Batches = Iterator[tuple[np.ndarray, np.ndarray]]


class _Vision(types.ModuleType):
    """In place of `streaming.vision`, which needs torchvision and reads no tokens."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def write_rows(folder: str, num_tokens: int) -> Shard:
    """Write rows as `Shuffle` does."""
    tokens = [make_shard(folder, num_tokens, 1000, 0)]
    (part,) = shuffle.reduce_inputs([], shuffle.plan(tokens, context=CONTEXT))
    output = fs.FolderOutput(f"{folder}/{uuid4().hex}")
    value = shuffle.merge_partition(part, output, seed=0, context=CONTEXT)
    return bundle(output.files, value)


def write_peer(folder: str, rows: Shard) -> None:
    """Write the same rows for the peer: 2,049 ids each."""
    sys.modules["streaming.vision"] = _Vision("streaming.vision")
    from streaming import MDSWriter  # noqa: PLC0415  optional

    data = SequenceData([rows], CONTEXT)
    columns = {"ids": f"ndarray:uint16:{CONTEXT + 1}"}
    with MDSWriter(out=f"{folder}/mds", columns=columns, size_limit=PEER_SHARD) as writer:
        for start in range(0, len(data), ROWS):
            batch = data.batch(np.arange(start, min(start + ROWS, len(data))))
            for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
                writer.write({"ids": np.append(tokens, max(0, targets[-1])).astype(np.uint16)})


def by_marin(rows: Shard, order: np.ndarray | None) -> Callable[[], Batches]:
    """Return what begins an epoch."""
    data = SequenceData([rows], CONTEXT)
    wanted = np.arange(len(data)) if order is None else order

    def epoch() -> Batches:
        for start in range(0, len(wanted) - ROWS + 1, ROWS):
            batch = data.batch(wanted[start : start + ROWS])
            yield batch.tokens, batch.targets

    return epoch


def by_streaming(folder: str, order: np.ndarray | None) -> Callable[[], Batches]:
    """Return what begins an epoch of the peer: in stored order as its iterator gives it, otherwise by index."""
    sys.modules["streaming.vision"] = _Vision("streaming.vision")
    from streaming import StreamingDataset  # noqa: PLC0415  optional

    data = StreamingDataset(local=f"{folder}/mds", shuffle=False, batch_size=ROWS)

    def epoch() -> Batches:
        held = []
        for row in data if order is None else (data[number] for number in order.tolist()):
            held.append(row["ids"])
            if len(held) == ROWS:
                ids = np.stack(held).astype(np.int64)
                yield ids[:, :-1], ids[:, 1:]
                held = []

    return epoch


def measure(name: str, make: Callable[[], Callable[[], Batches]]) -> None:
    """Read two epochs, and print."""
    before = own_memory()
    epoch = make()
    for turn in ("first", "again"):
        began, number, total = time.process_time(), 0, 0
        for tokens, _ in epoch():
            number += tokens.size
            total += int(tokens[0].sum())
        speed = number / (time.process_time() - began) / 1e6
        print(f"{name:28} {turn}: {speed:7.1f} M tokens/s and core  sum {total}", flush=True)
    held = max(own_memory() for _ in epoch())
    print(f"{name:28} held: {held - before:.1f} MB", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=60_000_000)
    parser.add_argument("--folder", default="/tmp/marin-loading")
    options = parser.parse_args()
    Path(options.folder).mkdir(parents=True)
    try:
        rows = write_rows(options.folder, options.tokens)
        write_peer(options.folder, rows)
        order = np.random.default_rng(0).permutation(len(SequenceData([rows], CONTEXT)))
        for name, chosen in (("in stored order", None), ("in random order", order)):
            for side, make in (
                ("marin", partial(by_marin, rows, chosen)),
                ("streaming", partial(by_streaming, options.folder, chosen)),
            ):
                process = multiprocessing.get_context("spawn").Process(target=measure, args=(f"{side} {name}", make))
                process.start()
                process.join()
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
