"""`Records`: a few texts written in the pipeline itself, for tests and examples."""

from marin.base.config import Several
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.files import Shard
from marin.graph.step import Step


class Records(Step[Documents]):
    """Documents from texts that stand in the configuration."""

    version = 1

    texts: Several[str]

    def model_post_init(self, context: object, /) -> None:
        """Refuse what is no text: half of a surrogate pair has no bytes."""
        for number, text in enumerate(self.texts):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ConfigurationError(
                    f"text {number} has a lone surrogate at character {error.start}: {error.object[error.start]!r}",
                    where="Records.texts",
                    hint="take it out, or read texts from files, where such documents can be skipped and counted",
                ) from error

    def run(self, ctx: Context) -> Documents:
        """Write the texts as one shard."""
        from marin.data import ingest

        mapped = ctx.map(ingest.records_shard, [Shard("records", "")], texts=self.texts)
        return Documents.write(ctx.output, shards=mapped.shards, meta=ingest.total(mapped))
