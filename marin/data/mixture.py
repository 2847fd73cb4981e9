"""Mixtures: which source each sample comes from, and which of its rows that is. Rows are not copied.

Invariant: at every prefix of g samples, each source has been drawn its weight times g, rounded up or down; over phases,
the sum of its weights. So the state of a mixture is g alone. Taking the source with the largest deficit does not give
that (weights of 95, 91, 65, 10, 9, 7, 5, 3, 1 and 1 parts leave one behind by 1.1); of the sources that may be drawn
without running ahead, the one is taken that would be the first to fall a whole sample behind (R. Tijdeman, The chairman
assignment problem, Discrete Mathematics 32, 1980). What a lengthened last phase adds comes after what there was.
Legend: S sources, N samples.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data.arrays import read_array
from marin.data.blocks import write_summed
from marin.data.hashes import bundle, mix64, seed_hash
from marin.data.loader import ORDER
from marin.data.phases import Exhausted, Phase, Unit
from marin.graph.artifact import Sequences
from marin.graph.files import Output, Shard

SHARES = 2**40
"""Weights are whole numbers of this part: off by less than a thousandth of a sample after 10^9."""


class Source(NamedTuple):
    """One source of a mixture."""

    name: str
    rows: list[Shard]
    """Its shards without its own order."""
    order: Shard | None
    """The order of a source that is a mixture itself."""
    num_sequences: int
    num_target_tokens: int


def read_sources(loaded: Mapping[str, Sequences]) -> list[Source]:
    """Return the sources by name; DataError for an empty one, or one of another context or tokenizer."""
    sources = []
    first_name, first = next(iter(sorted(loaded.items())))
    for name, sequences in sorted(loaded.items()):
        meta = sequences.meta
        if not sequences.shards or not meta["num_sequences"]:
            raise DataError(f"the source `{name}` is empty", where=f"Mix.sources[{name!r}]", hint="leave it out")
        if meta["context"] != first.meta["context"]:
            raise DataError(
                f"`{first_name}` has context {first.meta['context']}, `{name}` {meta['context']}",
                where=f"Mix.sources[{name!r}]",
                hint="shuffle or pack all sources with one context",
            )
        if sequences.file("tokenizer.json").digest != first.file("tokenizer.json").digest:
            raise DataError(
                f"`{name}` has another tokenizer than `{first_name}`",
                where=f"Mix.sources[{name!r}]",
                hint="tokenize all sources with one tokenizer",
            )
        orders = [shard for shard in sequences.shards if "order" in _value(shard)]
        rows = [shard for shard in sequences.shards if "order" not in _value(shard)]
        order = orders[0] if orders else None
        sources.append(Source(name, rows, order, meta["num_sequences"], meta["num_target_tokens"]))
    return sources


class SamplePhase(NamedTuple):
    """A phase in samples: how many, and each source's share of them, which sum to SHARES."""

    length: int
    shares: list[int]


def in_samples(phases: Sequence[Phase], sources: Sequence[Source], unit: Unit) -> list[SamplePhase]:
    """Return phases counted in samples; tokens by the mean number of targets that a source's sequences have."""
    result = []
    if unit == "tokens":
        for source in sources:
            if not source.num_target_tokens:
                raise DataError(
                    f"no token of `{source.name}` is a target, so its share of tokens means nothing",
                    where=f"Mix.sources[{source.name!r}]",
                    hint='leave the source out, or give unit="sequences"',
                )
    for phase in phases:
        weights = [phase.weights.get(source.name, 0.0) for source in sources]
        length = float(phase.length)
        if unit == "tokens":
            means = [source.num_target_tokens / source.num_sequences for source in sources]
            weights = [weight / mean if weight else 0.0 for weight, mean in zip(weights, means, strict=True)]
            length *= math.fsum(weights)
        result.append(SamplePhase(max(1, math.ceil(length)), _shares(weights)))
    return result


def _shares(weights: Sequence[float]) -> list[int]:
    whole = math.fsum(weights)
    shares = [max(1, round(weight / whole * SHARES)) if weight else 0 for weight in weights]
    shares[shares.index(max(shares))] += SHARES - sum(shares)
    return shares


def draw(phases: Sequence[SamplePhase]) -> np.ndarray:
    """Return the source of each sample, uint16 [N]; some 2 s a million."""
    num_sources = len(phases[0].shares)
    due = [_due(phases, source) for source in range(num_sources)]
    drawn = [0] * num_sources
    ready: list[tuple[float, int]] = []  # may be drawn: the sample before which it must be, the source
    waiting: list[tuple[float, int]] = [(due[source](1) - 1, source) for source in range(num_sources)]
    heapq.heapify(waiting)
    result = np.empty(sum(phase.length for phase in phases), np.uint16)
    for sample in range(len(result)):
        while waiting and waiting[0][0] <= sample:
            source = heapq.heappop(waiting)[1]
            heapq.heappush(ready, (due[source]((drawn[source] + 1) * SHARES), source))
        source = heapq.heappop(ready)[1]
        result[sample] = source
        drawn[source] += 1
        heapq.heappush(waiting, (due[source](drawn[source] * SHARES + 1) - 1, source))
    return result


def _due(phases: Sequence[SamplePhase], source: int) -> Callable[[int], float]:
    """Return what tells after how many samples a source is due so many shares; the last phase goes on for ever."""
    samples, owed, steps = 0, 0, []
    for phase in phases:
        steps.append((samples, owed, phase.shares[source]))
        samples += phase.length
        owed += phase.length * phase.shares[source]
    in_all = math.inf if phases[-1].shares[source] else owed

    def due(shares: int) -> float:
        if shares > in_all:
            return math.inf
        begun, before, rate = next(step for step in reversed(steps) if step[1] < shares)
        return begun - (before - shares) // rate

    return due


class Numbered(NamedTuple):
    """A mixture's rows: numbers over the rows of all sources, and how many were drawn of each source."""

    order: np.ndarray
    drawn: list[int]


def numbered(
    sources_of: np.ndarray, sizes: Sequence[int], names: Sequence[str], *, exhausted: Exhausted, seed: int
) -> Numbered:
    """Return the row of each sample, int64 [N]: a source's own order at first, then permuted anew in each epoch.

    `exhausted`: whether a source begins again after its last sequence, ends the mixture, or is a DataError.
    """
    counts = np.bincount(sources_of, minlength=len(sizes))
    for source, size in enumerate(sizes):
        if exhausted == "error" and counts[source] > size:
            raise DataError(
                f"the source `{names[source]}` has {size} sequences, and {counts[source]} are asked for",
                where=f"Mix.sources[{names[source]!r}]",
                hint='give it less weight, shorten the mixture, or set exhausted="repeat"',
            )
    if exhausted == "stop":
        places = [np.flatnonzero(sources_of == source)[size:] for source, size in enumerate(sizes)]
        sources_of = sources_of[: min([len(sources_of), *(int(place[0]) for place in places if len(place))])]
    order = np.empty(len(sources_of), np.int64)
    base, drawn = 0, []
    for source, size in enumerate(sizes):
        here = np.flatnonzero(sources_of == source)
        epochs = [_epoch(size, epoch, seed) for epoch in range(-(-len(here) // size))]
        order[here] = base + np.concatenate([np.empty(0, np.int64), *epochs])[: len(here)]
        base += size
        drawn.append(len(here))
    return Numbered(order, drawn)


def _epoch(size: int, epoch: int, seed: int) -> np.ndarray:
    numbers = np.arange(size)
    if epoch == 0:
        return numbers
    return np.argsort(mix64(numbers.astype(np.uint64) ^ seed_hash(seed, f"epoch {epoch}")))


def order_input(sources: Sequence[Source], phases: Sequence[SamplePhase]) -> Shard:
    """Return the input of `order_shard`."""
    described: list[Json] = [
        {
            "name": source.name,
            "sequences": source.num_sequences,
            "rows": sum(_value(shard).get("rows", 0) for shard in source.rows),
            "is_ordered": source.order is not None,
        }
        for source in sources
    ]
    files = [source.order.file(ORDER) for source in sources if source.order is not None]
    return bundle(files, {"sources": described, "phases": [[phase.length, list(phase.shares)] for phase in phases]})


def order_shard(shard: Shard, output: Output, *, exhausted: Exhausted, seed: int) -> Json:
    """Write `order.npy`, the row number of each sample; returns how many there are, and of which source."""
    value = _value(shard)
    sources, phases = value["sources"], [SamplePhase(*phase) for phase in value["phases"]]
    names, sizes = [source["name"] for source in sources], [source["sequences"] for source in sources]
    made = numbered(draw(phases), sizes, names, exhausted=exhausted, seed=seed)
    files = iter(shard.files)
    first_row, rows = 0, []
    for source in sources:
        own = read_array(next(files)) if source["is_ordered"] else np.arange(source["rows"])
        rows.append(first_row + own.astype(np.int64))
        first_row += source["rows"]
    order = np.concatenate(rows)[made.order].astype("<u4" if first_row < 2**32 else "<u8")
    sums = write_summed(output, ORDER, [order], order.shape, order.dtype)
    return {"order": len(order), "drawn": dict(zip(names, made.drawn, strict=True)), "blocks": list(sums)}


def total(sources: Sequence[Source], ordered: Shard, meta: Any, *, seed: int) -> dict[str, Any]:  # Any: JSON
    """Return the record of the mixture: how many sequences, and of each source how many and how many epochs.

    `num_target_tokens` counts a source's sequences by their mean.
    """
    drawn = _value(ordered)["drawn"]
    counted = {
        source.name: {
            "sequences": drawn[source.name],
            "epochs": round(drawn[source.name] / source.num_sequences, 6),
            "num_target_tokens": source.num_target_tokens * drawn[source.name] // source.num_sequences,
        }
        for source in sources
    }
    return {
        **{name: meta[name] for name in ("vocab_size", "dtype", "eos", "eos_id", "context")},
        "num_sequences": sum(drawn.values()),
        "num_target_tokens": sum(each["num_target_tokens"] for each in counted.values()),
        "sources": counted,
        "seed": seed,
    }


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
