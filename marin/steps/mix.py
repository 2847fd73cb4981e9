"""`Mix`: sources in given shares, at every prefix."""

from pydantic import Field

from marin.base.config import Several
from marin.base.errors import ConfigurationError, did_you_mean
from marin.data.phases import Exhausted, Phase, Unit
from marin.graph.artifact import Sequences
from marin.graph.context import Context
from marin.graph.step import Step


class Mix(Step[Sequences]):
    """Sequences of several sources in the order in which a training is to see them; none is copied.

    After any number of samples each source has had its share of them, to within one sample.
    """

    version = 1

    sources: dict[str, Step[Sequences]]
    """Shuffled or packed sequences by a name; a mixture will do as well."""
    phases: Several[Phase]
    """Shares of the sources, one phase after another."""
    exhausted: Exhausted
    """What comes after the last sequence of a source: its first ones in a new order, the end of all, or an error."""
    unit: Unit = "sequences"
    """What lengths and weights count; tokens that are targets, by the mean of a source's sequences."""
    seed: int = Field(ge=0)
    """Of the order in later epochs of a source."""

    def model_post_init(self, context: object, /) -> None:
        """Check that phases and sources know each other."""
        if not self.phases:
            raise ConfigurationError(
                "a mixture needs a phase", where="Mix.phases", hint="give phases=[Phase(length=..., weights={...})]"
            )
        named = {name for phase in self.phases for name in phase.weights}
        for name in sorted(named - set(self.sources)):
            hint = did_you_mean(name, self.sources) or f"the sources are {', '.join(sorted(self.sources))}"
            raise ConfigurationError(f"there is no source `{name}`", where="Mix.phases", hint=hint)
        for name in sorted(set(self.sources) - named):
            raise ConfigurationError(
                f"no phase has a weight for the source `{name}`",
                where="Mix.sources",
                hint="give it a weight, or leave it out",
            )

    def run(self, ctx: Context) -> Sequences:
        """Draw the source of each sample and number its row."""
        from marin.data import mixture

        loaded = {name: ctx.load(step) for name, step in self.sources.items()}
        sources = mixture.read_sources(loaded)
        phases = mixture.in_samples(self.phases, sources, self.unit)
        inputs = [mixture.order_input(sources, phases)]
        (ordered,) = ctx.map(mixture.order_shard, inputs, exhausted=self.exhausted, seed=self.seed).shards
        first = loaded[sources[0].name]
        ctx.output.write("tokenizer.json", first.contents.reader.read(first.file("tokenizer.json")))
        meta = mixture.total(sources, ordered, first.meta, seed=self.seed)
        ctx.metric(**{f"epochs/{name}": counted["epochs"] for name, counted in meta["sources"].items()})
        shards = [shard for source in sources for shard in source.rows]
        return Sequences.write(ctx.output, shards=[*shards, ordered], meta=meta)
