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
    format: Literal["megatron", "parquet", "mds"]
    """`megatron`: `tokens.bin` and `tokens.idx`; `mds`, MosaicML Streaming's: `tokens.mds`, and `index.json` above the
    shards; both with an index from which an import restores all. Or Parquet."""
    dtype: Literal["uint16", "int32"] | None = None
    """Type of the ids outside Parquet; None: uint16 where the vocabulary fits, else int32."""

    def model_post_init(self, context: object, /) -> None:
        """Check that the type is asked for where it means something."""
        if self.dtype is not None and self.format == "parquet":
            raise ConfigurationError(
                "`dtype` is not for Parquet, which keeps the type of the ids",
                where="ExportTokens.dtype",
                hint="leave `dtype` out",
            )

    def run(self, ctx: Context) -> Folder:
        """Convert each shard."""
        from marin.data import token_export

        tokens = ctx.load(self.tokens)
        mapped = ctx.map(token_export.export_shard, tokens.shards, format=self.format, dtype=self.dtype)
        ctx.output.write("tokenizer.json", tokens.contents.reader.read(tokens.file("tokenizer.json")))
        if self.format == "mds":
            ctx.output.write("index.json", token_export.mds_index(mapped.shards, tokens.meta["dtype"], self.dtype))
        return Folder(ctx.output.contents(shards=mapped.shards, meta={"format": self.format}))
