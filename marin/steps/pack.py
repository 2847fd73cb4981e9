"""`Pack`: shuffled documents in rows, whole where they fit."""

from typing import Literal

from pydantic import Field

from marin.graph.artifact import Sequences, Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class Pack(Step[Sequences]):
    """Rows of `context` positions made of documents in the order of `Shuffle`; no target crosses a document's end.

    Tokens are written once in that order. Another context or method makes a new index over them, and nothing else.
    """

    version = 1

    tokens: Step[Tokens]
    context: int = Field(ge=2)
    """Positions a row: inputs, each with the token after it as its target."""
    seed: int = Field(ge=0)
    method: Literal["best_fit", "concat", "one_per_row"]
    """Pieces into the fullest row that has room; one after another, cut where a row ends; or a row for each."""
    long: Literal["fragment", "truncate", "drop"] = "fragment"
    """What becomes of documents with more positions than a row."""

    def run(self, ctx: Context) -> Sequences:
        """Shuffle documents in two passes, then pack each shard of them."""
        from marin.data import packing, shuffle

        tokens = ctx.load(self.tokens)
        plan = shuffle.plan(tokens.shards, context=self.context)
        spilled = ctx.map(shuffle.spill_shard, plan.spilled, seed=self.seed, partition_bits=plan.partition_bits)
        inputs = packing.document_inputs(spilled.shards, plan, shard_tokens=shuffle.SHARD_TOKENS)
        gathered = ctx.map(packing.gather_documents, inputs, seed=self.seed)
        packed = ctx.map(
            packing.pack_shard,
            packing.pack_inputs(gathered.shards),
            context=self.context,
            method=self.method,
            long=self.long,
            seed=self.seed,
        )
        ctx.output.write("tokenizer.json", tokens.contents.reader.read(tokens.file("tokenizer.json")))
        meta = packing.total(packed, tokens.meta, context=self.context, seed=self.seed)
        return Sequences.write(ctx.output, shards=[*gathered.shards, *packed.shards], meta=meta)
