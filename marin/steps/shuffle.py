"""`Shuffle`: one global, reproducible order of all documents, ready for training."""

from pydantic import Field

from marin.graph.artifact import Sequences, Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class Shuffle(Step[Sequences]):
    """Documents in an order that is a pure function of seed and content, cut into rows of `context` tokens."""

    version = 2

    tokens: Step[Tokens]
    context: int = Field(ge=2)
    """Tokens a row."""
    seed: int = Field(ge=0)

    def run(self, ctx: Context) -> Sequences:
        """Partition every shard by the documents' keys, then sort and write each partition."""
        from marin.data import shuffle

        tokens = ctx.load(self.tokens)
        plan = shuffle.plan(tokens.shards, context=self.context)
        spilled = ctx.map(shuffle.spill_shard, plan.spilled, seed=self.seed, partition_bits=plan.partition_bits)
        parts = shuffle.reduce_inputs(spilled.shards, plan)
        merged = ctx.map(shuffle.merge_partition, parts, seed=self.seed, context=self.context)
        ctx.output.write("tokenizer.json", tokens.contents.reader.read(tokens.file("tokenizer.json")))
        meta = shuffle.total(merged, tokens.meta, context=self.context, seed=self.seed)
        return Sequences.write(ctx.output, shards=merged.shards, meta=meta)
