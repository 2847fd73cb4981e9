"""How fast tokens are shuffled, in two passes, beside a bare numpy sort and gather of the same bytes in the same run.

    python benchmarks/shuffle.py --megabytes 512 --folder /dev/shm/shuffle
    python benchmarks/shuffle.py --peer ray          needs ray[data]

Both sides read token shards of uint16 ids in documents of about `--length` tokens and write shards of rows; marin's are
the shuffle's own functions in `--processes` processes, checksums and flushes included. *Bare* is one process that holds
everything in memory, and writes the documents in a random order. The folder decides: a shuffle writes its input twice.
"""

import argparse
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from marin import fs
from marin.base.json import Json
from marin.data import shuffle
from marin.data.hashes import bundle
from marin.data.token_files import TOKENS, DocumentColumns, write_tokens
from marin.graph.files import Shard

DTYPE = np.dtype("<u2")
CONTEXT = 2048


def make_shard(folder: str, num_tokens: int, mean_length: int, seed: int) -> Shard:
    """Write a token shard of random ids; lengths are log-normal."""
    generator = np.random.default_rng(seed)
    lengths = np.maximum(2, generator.lognormal(np.log(mean_length) - 0.5, 1.0, num_tokens // mean_length)).astype(int)
    ids = generator.integers(0, 256, (len(lengths), 16), dtype=np.uint8)
    tokens = generator.integers(0, 50_000, int(lengths.sum()), dtype=DTYPE)
    output = fs.FolderOutput(f"{folder}/tokens-{seed}")
    columns = DocumentColumns(lengths, ids, pa.array(["web"] * len(lengths), pa.large_string()))
    num_tokens = write_tokens(output, [tokens], DTYPE, columns)
    return bundle(output.files, {"tokens": num_tokens})


def call(work: tuple[str, Callable[..., Json], Shard, dict[str, int]]) -> tuple[Shard, float]:
    """Run a shard function; returns its shard, and the most memory this process ever had, in MB."""
    folder, fn, shard, config = work
    output = fs.FolderOutput(f"{folder}/{uuid4().hex}")
    value = fn(shard, output, **config)
    return bundle(output.files, value), own_memory()


def own_memory() -> float:
    """Return the most anonymous memory of this process, in MB: what is mapped of files is the page cache's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1e3


def shuffled(folder: str, shards: Sequence[Shard], processes: int) -> tuple[list[Shard], float]:
    """Shuffle in two passes; returns the final shards and the most memory of a process after a call, in MB."""
    plan = shuffle.plan(shards, context=CONTEXT)
    with multiprocessing.get_context("fork").Pool(processes) as pool:

        def run(fn: Callable[..., Json], inputs: Sequence[Shard], **config: int) -> list[tuple[Shard, float]]:
            return pool.map(call, [(folder, fn, shard, config) for shard in inputs], chunksize=1)

        watch = Stopwatch()
        spilled = run(shuffle.spill_shard, plan.spilled, seed=0, partition_bits=plan.partition_bits)
        spill_wall = watch.wall
        inputs = shuffle.reduce_inputs([shard for shard, _ in spilled], plan)
        merged = run(shuffle.merge_partition, inputs, seed=0, context=CONTEXT)
        print(f"  spill {spill_wall:.2f} s, merge {watch.wall - spill_wall:.2f} s")
        pool.close()
        pool.join()
    return [shard for shard, _ in merged], max(memory for _, memory in [*spilled, *merged])


def bare(folder: str, shards: Sequence[Shard]) -> None:
    """Sort all documents by a random key and gather their tokens, in memory; write them once, without checksums."""
    arrays = [np.load(shard.file(TOKENS).url) for shard in shards]
    ends = [shuffle.read_pieces(shard).ends for shard in shards]
    views = [view for array, end in zip(arrays, ends, strict=True) for view in np.split(array, end[:-1])]
    order = np.argsort(np.random.default_rng(0).integers(0, 2**63, len(views)))
    gathered = np.concatenate([views[at] for at in order.tolist()])
    np.save(f"{folder}/bare.npy", gathered)


def by_ray(folder: str, shards: Sequence[Shard]) -> None:
    """Let Ray Data shuffle rows that hold one document each, and write Parquet."""
    import ray  # noqa: PLC0415  optional, and slow to import

    paths = []
    for number, shard in enumerate(shards):
        pieces = shuffle.read_pieces(shard)
        table = pa.table({"tokens": pa.array([view.tobytes() for view in pieces.views()], pa.large_binary())})
        paths.append(f"{folder}/ray-{number}.parquet")
        parquet.write_table(table, paths[-1], compression=None)
    ray.init(num_cpus=2, include_dashboard=False, address="local")
    watch = Stopwatch()
    ray.data.read_parquet(paths).random_shuffle(seed=7).write_parquet(f"{folder}/ray-out", compression=None)
    print(f"ray.data.random_shuffle, 2 cores: {size_mb(shards) / watch.wall:.0f} MB/s")
    ray.shutdown()


class Stopwatch:
    """Seconds that passed, and seconds that cores spent on this process and its children that have ended."""

    def __init__(self) -> None:
        self._wall, self._cores = time.perf_counter(), self._spent()

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cores(self) -> float:
        return self._spent() - self._cores

    def speed(self, megabytes: float) -> str:
        """Return the speed by either."""
        return f"{megabytes / self.wall:.0f} MB/s, {megabytes / self.cores:.0f} MB a core second"

    @staticmethod
    def _spent() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system


def size_mb(shards: Sequence[Shard]) -> float:
    """Return how much the tokens are."""
    return sum(shard.file(TOKENS).size for shard in shards) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--length", type=int, default=1000, help="tokens a document, on average")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", default="/tmp/marin-shuffle")
    parser.add_argument("--peer", choices=["ray"])
    options = parser.parse_args()
    folder = f"{options.folder}/{uuid4().hex[:8]}"
    Path(folder).mkdir(parents=True)
    make = partial(make_shard, folder, options.megabytes * 500_000 // options.shards, options.length)
    try:
        shards = [make(number) for number in range(options.shards)]
        watch = Stopwatch()
        bare(folder, shards)
        print(f"bare numpy, 1 process: {watch.speed(size_mb(shards))}")
        digests = set()
        for processes in options.processes:
            watch = Stopwatch()
            made, memory = shuffled(folder, shards, processes)
            digests.add(tuple(shard.digest for shard in made))
            speed = watch.speed(size_mb(shards))
            print(f"marin, {processes} processes: {speed}, {len(made)} shards, {memory:.0f} MB a process")
        print(f"byte-identical: {len(digests) == 1}; the whole program held at most "
              f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")  # fmt: skip
        if options.peer == "ray":
            by_ray(folder, shards)
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
