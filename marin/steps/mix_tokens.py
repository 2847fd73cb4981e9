"""`MixTokens`: sources in given shares, before they are shuffled together."""

from pydantic import Field

from marin.data.phases import Exhausted, check_named, check_shares
from marin.graph.artifact import Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class MixTokens(Step[Tokens]):
    """Documents of several sources, each taken as often as gives it its share of `tokens`.

    For `Shuffle` or `Pack` over all of them: rows may hold documents of several sources, and shares hold on average.
    `Mix` is for shares that hold at every prefix, or change.
    """

    version = 1

    sources: dict[str, Step[Tokens]]
    weights: dict[str, float]
    """Share of each source, by its name; shares sum to 1."""
    tokens: int = Field(ge=1)
    """About how many there will be: documents are taken whole, and parts of a source by hash."""
    exhausted: Exhausted
    """What a source with too few tokens means: it is taken more than once, all are taken less, or an error."""
    seed: int = Field(ge=0)
    """Of which documents are taken where a source is not taken whole."""

    def model_post_init(self, context: object, /) -> None:
        """Check that the weights are shares of the sources."""
        check_shares(self.weights, where="MixTokens.weights")
        check_named(self.weights, self.sources, where="MixTokens")

    def run(self, ctx: Context) -> Tokens:
        """Take each source as often as its share needs."""
        from marin.data import token_mixture

        loaded = {name: ctx.load(step) for name, step in sorted(self.sources.items())}
        token_mixture.check_sources(loaded)
        sizes = {name: tokens.meta["tokens"] for name, tokens in loaded.items()}
        epochs = token_mixture.epochs(sizes, self.weights, tokens=self.tokens, exhausted=self.exhausted)
        taken = []
        for name, tokens in loaded.items():
            shards = ctx.map(token_mixture.take_shard, tokens.shards, epochs=epochs[name], seed=self.seed).shards
            taken.append(token_mixture.Taken(name, epochs[name], shards, tokens.meta))
        first = loaded[taken[0].name]
        ctx.output.write("tokenizer.json", first.contents.reader.read(first.file("tokenizer.json")))
        meta = token_mixture.total(taken)
        ctx.metric(**{f"epochs/{name}": counted["epochs"] for name, counted in meta["sources"].items()})
        return Tokens.write(ctx.output, shards=[shard for source in taken for shard in source.shards], meta=meta)
