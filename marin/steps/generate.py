"""`Generate`: a model's continuations of prompts."""

from pydantic import Field

from marin.base.config import Placement, Several
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Checkpoint, Documents, Table
from marin.graph.context import Context
from marin.graph.step import Step


class Generate(Step[Table]):
    """A table of prompts and their completions, in order; greedy at temperature 0, otherwise sampled by seed.

    Every prompt has a row; where there is no completion, `error` says why.
    """

    version = 2

    checkpoint: Step[Checkpoint]
    prompts: Several[str] = ()
    documents: Step[Documents] | None = None
    """Documents whose texts are the prompts, instead."""
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1, gt=0, le=1)
    """Sample among the fewest likeliest tokens that hold this much probability."""
    stop: Several[str] = ()
    """Texts that end a completion, and are no part of it; the end-of-text token always does."""
    seed: int = Field(default=0, ge=0)
    batch_tokens: Placement[int] = Field(default=16_384, ge=1)
    """Tokens kept at once, prompts included; changes no completion beyond rounding of the logits."""

    def model_post_init(self, context: object, /) -> None:
        """Check that there is one source of prompts."""
        if bool(self.prompts) == (self.documents is not None):
            raise ConfigurationError(
                "Generate takes one of `prompts` and `documents`",
                where="Generate.prompts",
                hint="give prompts=[...] or documents=...",
            )
        if "" in self.stop:
            raise ConfigurationError(
                "an empty text would end every completion at once", where="Generate.stop", hint="leave it out"
            )

    def run(self, ctx: Context) -> Table:
        """Continue the prompts in shards, and put the rows back in order."""
        from marin.evaluate import checkpoint, complete, generate

        if self.documents is None:
            shards = generate.plan_prompts(self.prompts)
        else:
            shards = generate.plan_documents(ctx.load(self.documents).shards)
        sampling = complete.Sampling(self.max_tokens, self.temperature, self.top_p, self.seed, self.stop)
        mapped = ctx.map(
            generate.generate_shard,
            shards,
            sampling=sampling,
            batch_tokens=self.batch_tokens,
            **checkpoint.checkpoint_files(ctx.load(self.checkpoint).contents),
        )
        generated = generate.gather(mapped.shards)
        ctx.metric(**generated.metrics)
        return Table.write(ctx.output, generated.table)
