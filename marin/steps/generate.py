"""`Generate`: a model's continuations of prompts."""

from pydantic import Field

from marin.base.config import Several
from marin.graph.artifact import Checkpoint, Table
from marin.graph.context import Context
from marin.graph.step import Step


class Generate(Step[Table]):
    """A table of prompts and their completions; greedy at temperature 0, otherwise sampled by seed."""

    version = 1

    checkpoint: Step[Checkpoint]
    prompts: Several[str]
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0)

    def run(self, ctx: Context) -> Table:
        """Continue each prompt until the end-of-text token or `max_tokens`."""
        from marin.evaluate.complete import complete_prompts

        rows = complete_prompts(
            ctx.load(self.checkpoint).contents,
            self.prompts,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )
        return Table.write(ctx.output, rows)
