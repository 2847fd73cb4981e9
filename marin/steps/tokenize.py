"""`Tokenize`: documents to token ids."""

from marin.graph.artifact import Documents, Tokenizer, Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class Tokenize(Step[Tokens]):
    """Token ids of each document, each ended once by the tokenizer's end-of-text token."""

    version = 1

    documents: Step[Documents]
    tokenizer: Step[Tokenizer]

    def run(self, ctx: Context) -> Tokens:
        """Encode each shard; shards whose text and tokenizer are known are reused."""
        from marin.data import tokenize

        tokenizer = ctx.load(self.tokenizer)
        mapped = ctx.map(
            tokenize.tokenize_shard,
            ctx.load(self.documents).shards,
            tokenizer=tokenizer.file("tokenizer.json"),
            eos=tokenizer.meta["eos"],
        )
        ctx.output.write("tokenizer.json", tokenizer.read())
        meta = tokenize.total(mapped, tokenizer_json=tokenizer.read(), eos=tokenizer.meta["eos"])
        return Tokens.write(ctx.output, shards=mapped.shards, meta=meta)
