"""`CompressionBaseline`: what general compressors need for the same bytes."""

from marin.graph.artifact import Documents, Scores
from marin.graph.context import Context
from marin.graph.step import Step


class CompressionBaseline(Step[Scores]):
    """Bits per byte of gzip and xz, each document compressed alone, to read a model's number against."""

    version = 1

    documents: Step[Documents]

    def run(self, ctx: Context) -> Scores:
        """Compress every document."""
        from marin.evaluate.compression import compress_documents

        scores = compress_documents(ctx.load(self.documents).shards)
        ctx.metric(**scores.metrics)
        return Scores.write(ctx.output, scores.metrics, details=scores.details)
