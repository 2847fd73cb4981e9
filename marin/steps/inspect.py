"""`Inspect`: what data look like, as numbers, a picture and samples."""

from typing import Annotated

from pydantic import Field

from marin.base.config import ElideIf
from marin.base.errors import ConfigurationError
from marin.data.duplicate_rules import MinHash
from marin.graph.artifact import Documents, Folder, Sequences, Sharded, Tokens
from marin.graph.context import Context
from marin.graph.step import Step


class Inspect(Step[Folder]):
    """Lengths, sources, duplicates, quarantine and samples of data: `inspection.json`, `report.md`, `lengths.svg`."""

    version = 2

    data: Step[Sharded]
    """Documents, Tokens or Sequences."""
    samples: int = Field(default=10, ge=0)
    """Samples shown, and quarantined lines."""
    length: int = Field(default=1000, ge=1)
    """Characters (of Documents) or tokens of each."""
    near: Annotated[MinHash | None, ElideIf(None)] = None
    """What makes two Documents near duplicates: pairs of them are shown, each with its similarity. None: not sought."""

    def model_post_init(self, context: object, /) -> None:
        """Check that it is data of a kind that can be inspected."""
        kind = self.data.artifact_type()
        if not issubclass(kind, Documents | Tokens | Sequences):
            raise ConfigurationError(
                f"`Inspect.data` expects Documents, Tokens or Sequences, got a step that produces {kind.__name__}",
                where="Inspect.data",
                hint="give such a step",
            )

        if self.near is not None and not issubclass(kind, Documents):
            raise ConfigurationError(
                f"`Inspect.near` compares texts, and `data` is {kind.__name__}",
                where="Inspect.near",
                hint="inspect the Documents that it was made from",
            )

    def run(self, ctx: Context) -> Folder:
        """Count each shard, add up, and read the samples."""
        from marin.data import inspection, look_rows, near_pairs

        data = ctx.load(self.data)
        one_of = inspection.hash_one_of(int(data.meta.get("documents_out", 0)))
        if isinstance(data, Documents):
            mapped = ctx.map(inspection.inspect_documents, data.shards, one_of=one_of)
        elif isinstance(data, Tokens):
            mapped = ctx.map(inspection.inspect_tokens, data.shards)
        else:
            mapped = ctx.map(inspection.inspect_sequences, look_rows.index_inputs(data.shards))
        numbers = inspection.summary(mapped, mapped.shards, data.meta, one_of=one_of)
        if self.near is not None:
            numbers |= near_pairs.find(data.shards, ctx.map, rule=self.near, shown=self.samples)
        inspection.write_report(ctx.output, data, numbers, samples=self.samples, length=self.length)
        return Folder(ctx.output.contents(meta={"type": data.type_name(), **inspection.headline(numbers)}))
