"""`ExportTokens`: token ids in the files of other tools."""

from typing import Literal

from marin.base.errors import ConfigurationError
from marin.graph.artifact import Folder, Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class ExportTokens(Step[Folder]):
    """Token ids for other tools, a set of files a shard: published by `.at` they lie in `shards/00000` and so on."""

    version = 1

    tokens: Step[Tokens]
    format: Literal["megatron", "parquet"]
    """`megatron`: `tokens.bin` and `tokens.idx`, and an index from which an import restores all; or Parquet."""
    dtype: Literal["uint16", "int32"] | None = None
    """Type of Megatron's ids; None: uint16 where the vocabulary fits, else int32."""

    def model_post_init(self, context: object, /) -> None:
        """Check that the type is asked for where it means something."""
        if self.dtype is not None and self.format != "megatron":
            raise ConfigurationError(
                "`dtype` is for Megatron's files; Parquet keeps the type of the ids",
                where="ExportTokens.dtype",
                hint="leave `dtype` out",
            )

    def run(self, ctx: Context) -> Folder:
        """Convert each shard."""
        from marin.data import token_exchange

        tokens = ctx.load(self.tokens)
        mapped = ctx.map(token_exchange.export_shard, tokens.shards, format=self.format, dtype=self.dtype)
        ctx.output.write("tokenizer.json", tokens.contents.reader.read(tokens.file("tokenizer.json")))
        return Folder(ctx.output.contents(shards=mapped.shards, meta={"format": self.format}))
