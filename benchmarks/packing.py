"""How fast documents are packed into rows and how full these are, and how fast the loader reads them back.

    python benchmarks/packing.py --documents 1000000 --folder /dev/shm/packing

Lengths are log-normal. *Bare* is first-fit decreasing by a loop over bins, in plain Python: slow, so on 4,096 documents
only. The loader reads batches of 64 rows in stored order from the page cache, as a training does; *bare* there is the
same bytes through `np.memmap` alone, cast to int64.
"""

import argparse
import shutil
import time
from pathlib import Path
from uuid import uuid4

import numpy as np
from shuffle import DTYPE, make_shard

from marin import fs
from marin.data import packing, shuffle
from marin.data.hashes import bundle
from marin.data.loader import SequenceData
from marin.data.token_files import TOKENS
from marin.graph.files import Shard


def first_fit(lengths: np.ndarray, context: int) -> int:
    """Return how many bins first-fit decreasing needs, by its definition."""
    rooms: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        for at, room in enumerate(rooms):
            if room >= length:
                rooms[at] -= length
                break
        else:
            rooms.append(context - length)
    return len(rooms)


def pack_speed(num_documents: int, mean: int, context: int) -> None:
    """Print documents a second and core, and padding."""
    generator = np.random.default_rng(0)
    drawn = generator.lognormal(np.log(mean) - 0.5, 1.0, num_documents)
    positions = np.maximum(2, drawn).astype(np.int64) - 1
    for method in ("best_fit", "concat"):
        began = time.process_time()
        pieces = packing.pack(positions, context=context, method=method, long="fragment")  # type: ignore[arg-type]
        seconds = time.process_time() - began
        rows = int(pieces.row.max()) + 1
        padding = 1 - pieces.length.sum() / (rows * context)
        print(f"{method}, mean {mean}, context {context}: {num_documents / seconds / 1e6:.2f} M documents/s, "
              f"padding {100 * padding:.3f} %")  # fmt: skip
    few = np.minimum(positions[:4096], context)
    began = time.process_time()
    bins = first_fit(few, context)
    seconds = time.process_time() - began
    print(f"bare first-fit of 4,096 of them: {len(few) / seconds / 1e6:.3f} M documents/s, {bins} rows, "
          f"best_fit {int(packing.best_fit(few, context).max()) + 1} rows")  # fmt: skip


def run(folder: str, fn: object, shard: Shard, **config: object) -> Shard:
    """Run a shard function."""
    output = fs.FolderOutput(f"{folder}/{uuid4().hex}")
    value = fn(shard, output, **config)  # type: ignore[operator]
    return bundle(output.files, value)


def loader_speed(folder: str, context: int) -> None:
    """Print tokens a second that the loader reads, of either kind of rows."""
    tokens = [make_shard(folder, 30_000_000, 1000, 0)]
    plan = shuffle.plan(tokens, context=context)
    (part,) = shuffle.reduce_inputs([], plan)
    cut = run(folder, shuffle.merge_partition, part, seed=0, context=context)
    (whole,) = packing.document_inputs([], plan, shard_tokens=shuffle.SHARD_TOKENS)
    gathered = run(folder, packing.gather_documents, whole, seed=0)
    (index,) = packing.pack_inputs([gathered])
    config = {"context": context, "method": "best_fit", "long": "fragment", "seed": 0}
    packed = run(folder, packing.pack_shard, index, **config)
    for name, shards in (("cut", [cut]), ("packed", [gathered, packed])):
        for segments in (False, True):
            data = SequenceData(shards, context)
            for turn in ("first pass, checksums", "second pass"):
                began = time.process_time()
                for start in range(0, len(data) - 64, 64):
                    data.batch(np.arange(start, start + 64), segments=segments)  # type: ignore[call-overload]
                speed = len(data) * context / (time.process_time() - began) / 1e6
                print(f"loader, {name} rows, segments={segments}, {turn}: {speed:.0f} M tokens/s and core")
    mapped = np.memmap(cut.file(TOKENS).url, DTYPE, "r")
    width = 64 * (context + 1)
    began = time.process_time()
    for start in range(0, len(mapped) - width, width):
        rows = mapped[start : start + width].reshape(64, context + 1)
        rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
    print(f"bare memmap: {len(mapped) / (time.process_time() - began) / 1e6:.0f} M tokens/s and core")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--folder", default="/tmp/marin-packing")
    options = parser.parse_args()
    for mean, context in ((200, 2048), (600, 2048), (600, 8192), (2000, 8192)):
        pack_speed(options.documents, mean, context)
    Path(options.folder).mkdir(parents=True)
    try:
        loader_speed(options.folder, 2048)
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
