"""`Files`: text and JSON-lines files, anywhere fsspec reaches, as documents."""

from typing import Literal

from pydantic import Field

from marin.base.config import Placement, Several
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.step import Step


class Files(Step[Documents]):
    """Documents from files, pinned by content when planned; where the files lie does not count."""

    version = 1

    url: Placement[str]
    """Pattern such as `s3://lab/corpus/**/*.jsonl.zst`; only paths relative to its literal folder count."""
    exclude: Placement[Several[str]] = ()
    """Patterns relative to that folder, such as `site-packages/**`."""
    text: str | None = None
    """Field of each JSON line that holds the text, nested as `a.b`; None: each file is one document."""
    on_error: Literal["fail", "skip", "quarantine"] = "fail"
    """What one bad file or line costs; skipped and quarantined ones are counted."""
    shard_bytes: int = Field(default=64_000_000, ge=1)
    """Mean size of the groups that small files are gathered into; a larger file is a shard of its own."""

    def inputs(self) -> tuple[str, ...]:
        """The pattern, and the exclusions marked with `!`."""
        return (self.url, *(f"!{pattern}" for pattern in self.exclude))

    def run(self, ctx: Context) -> Documents:
        """Read, check and regroup the files, one group a shard."""
        from marin.data import ingest

        groups = ingest.plan_groups(ctx.inputs, target_bytes=self.shard_bytes)
        mapped = ctx.map(ingest.ingest_shard, groups, text=self.text, on_error=self.on_error)
        return Documents.write(ctx.output, shards=mapped.shards, meta=ingest.total(mapped))
