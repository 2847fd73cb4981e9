"""`ImportTokens`: token ids that another tool made."""

from typing import Literal

from marin.base.config import Placement
from marin.graph.artifact import Tokenizer, Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class ImportTokens(Step[Tokens]):
    """Token ids from another tool's files, pinned by content when planned and checked against the tokenizer."""

    version = 1

    url: Placement[str]
    """A folder or a pattern; only paths relative to it count. Files of other kinds in it are left out."""
    format: Literal["megatron", "parquet", "mds"]
    """`megatron`: pairs of `.bin` and `.idx`. `parquet` and `mds`: a row or sample a document, its ids in `tokens` or
    `input_ids`; MDS has them as arrays or, as older sets for training do, as the bytes of int64."""
    tokenizer: Step[Tokenizer]
    """What made the ids."""
    on_missing_eos: Literal["fail", "append"] = "fail"
    """What a document costs that does not end with the tokenizer's end-of-text token; appended ones are counted."""

    def inputs(self) -> tuple[str, ...]:
        """The folder or pattern."""
        return (self.url.rstrip("/"),)

    def run(self, ctx: Context) -> Tokens:
        """Convert each file, large ones in pieces."""
        from marin.data import token_import, tokenize

        tokenizer = ctx.load(self.tokenizer)
        mapped = ctx.map(
            token_import.import_shard,
            token_import.plan_import(ctx.inputs, format=self.format),
            tokenizer=tokenizer.file("tokenizer.json"),
            eos=tokenizer.meta["eos"],
            on_missing_eos=self.on_missing_eos,
            format=self.format,
        )
        ctx.output.write("tokenizer.json", tokenizer.read())
        meta = tokenize.total(mapped, tokenizer_json=tokenizer.read(), eos=tokenizer.meta["eos"])
        return Tokens.write(ctx.output, shards=mapped.shards, meta=meta)
