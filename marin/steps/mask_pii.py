"""`MaskPII`: documents without addresses and numbers of persons."""

from pydantic import Field

from marin.base.config import Several
from marin.base.errors import ConfigurationError
from marin.data.patterns import BUILT_IN, Pattern
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.step import Step


class MaskPII(Step[Documents]):
    """Documents with matches of patterns replaced: email and IPv4 addresses and phone numbers, by default."""

    version = 1

    documents: Step[Documents]
    patterns: Several[Pattern] = Field(default=BUILT_IN, min_length=1)
    """Applied in this order."""
    samples: int = Field(default=20, ge=0)
    """Matches shown for each pattern in `replaced.jsonl`, which then holds personal data; 0: none."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse two patterns of one name."""
        names = [pattern.name for pattern in self.patterns]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"two patterns are called `{name}`", where="MaskPII.patterns", hint="give each a name of its own"
                )

    def run(self, ctx: Context) -> Documents:
        """Replace all matches in each shard."""
        from marin.data import counts, mask, samples

        shards = ctx.load(self.documents).shards
        mapped = ctx.map(mask.mask_shard, shards, patterns=self.patterns, samples=self.samples)
        samples.merge_samples(mapped.shards, ctx.output, mask.REPLACED, self.samples)
        return Documents.write(ctx.output, shards=mapped.shards, meta=counts.total(mapped))
