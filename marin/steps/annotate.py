"""`Annotate`: scores of documents, without judging them."""

from pydantic import Field

from marin.base.config import Several
from marin.base.errors import ConfigurationError
from marin.data.scorers import C4, FastText, Gopher, Repetition, Scorer, Scripts
from marin.graph.artifact import Annotations, Documents
from marin.graph.context import Context
from marin.graph.step import Step

_BUILT_IN = (Gopher, Repetition, C4, Scripts, FastText)


class Annotate(Step[Annotations]):
    """Scores beside documents, a column each; `Filter` applies thresholds, so changing one recomputes no score."""

    version = 1

    documents: Step[Documents]
    scorers: Several[Scorer] = Field(min_length=1)
    """Built-in ones, and functions of one's own: text to a dict of numbers. A function's code counts."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse columns of one name, and subclasses: their code would not count."""
        seen: set[str] = set()
        for scorer in self.scorers:
            if not callable(scorer) and type(scorer) not in _BUILT_IN:
                raise ConfigurationError(
                    f"Annotate got a {type(scorer).__name__}, a scorer that marin does not know",
                    where="Annotate.scorers",
                    hint="write a function at the top of a module, `(text: str) -> dict[str, float]`, and give that",
                )
            columns = () if callable(scorer) else scorer.columns
            for column in columns:
                if column in seen:
                    raise ConfigurationError(
                        f"two scorers give a column `{column}`",
                        where="Annotate.scorers",
                        hint="leave one of them out",
                    )
                seen.add(column)
        if len(self.inputs()) > 1:  # whose pin is whose would not be in the recipe
            raise ConfigurationError(
                "Annotate takes one FastText model",
                where="Annotate.scorers",
                hint="give each model an Annotate of its own, and Filter both: annotations=(language, quality)",
            )

    def inputs(self) -> tuple[str, ...]:
        """The fastText models."""
        return tuple(scorer.url for scorer in self.scorers if isinstance(scorer, FastText))

    def run(self, ctx: Context) -> Annotations:
        """Score every document of each shard."""
        from marin.data import annotate

        models = annotate.models_of(self.scorers, ctx.inputs)
        shards = ctx.load(self.documents).shards
        mapped = ctx.map(annotate.annotate_shard, shards, scorers=self.scorers, models=models)
        return Annotations.write(ctx.output, shards=mapped.shards, meta=annotate.total(list(mapped)))
