"""`Tokenize`: documents to token ids."""

from typing import Annotated, Literal

from marin.base.config import ElideIf
from marin.graph.artifact import Documents, Tokenizer, Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class Tokenize(Step[Tokens]):
    """Token ids of each document, each ended once by the tokenizer's end-of-text token."""

    version = 2

    documents: Step[Documents]
    tokenizer: Step[Tokenizer]
    bos: Annotated[str | None, ElideIf(None)] = None
    """A token before each document, once, whatever the text begins with; None: no such token."""
    special_in_text: Annotated[Literal["text", "error"], ElideIf("text")] = "text"
    """What a control string inside a text is: text, and counted, or an error."""

    def run(self, ctx: Context) -> Tokens:
        """Encode each shard; shards whose text and tokenizer are known are reused."""
        from marin.data import tokenize

        tokenizer = ctx.load(self.tokenizer)
        mapped = ctx.map(
            tokenize.tokenize_shard,
            ctx.load(self.documents).shards,
            tokenizer=tokenizer.file("tokenizer.json"),
            eos=tokenizer.meta["eos"],
            bos=self.bos,
            special_in_text=self.special_in_text,
        )
        ctx.output.write("tokenizer.json", tokenizer.read())
        meta = tokenize.total(mapped, tokenizer_json=tokenizer.read(), eos=tokenizer.meta["eos"])
        return Tokens.write(ctx.output, shards=mapped.shards, meta=meta)
