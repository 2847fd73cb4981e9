"""`Conversations`: JSON lines with messages, as documents."""

from typing import Literal

from pydantic import Field

from marin.base.config import Placement, Several
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.step import Step


class Conversations(Step[Documents]):
    """Documents whose text is a conversation as JSON, for `Chat`; filters and deduplication work on them as on any."""

    version = 1

    url: Placement[str]
    """Pattern such as `s3://lab/chat/**/*.jsonl.zst`; only paths relative to its literal folder count."""
    exclude: Placement[Several[str]] = ()
    """Patterns relative to that folder."""
    messages: str = "messages"
    """Field of each line that holds the list of messages (`role` and `content`, or `from` and `value`)."""
    on_error: Literal["fail", "skip", "quarantine"] = "fail"
    """What one bad line costs; skipped and quarantined ones are counted."""
    shard_bytes: int = Field(default=64_000_000, ge=1)
    """Mean size of the groups that files are gathered into; a larger file is a shard of its own."""

    def inputs(self) -> tuple[str, ...]:
        """The pattern, and the exclusions marked with `!`."""
        return (self.url, *(f"!{pattern}" for pattern in self.exclude))

    def run(self, ctx: Context) -> Documents:
        """Read and check the lines, one group of files a shard."""
        from marin.data import conversations, ingest, splits

        groups = splits.plan_groups(ctx.inputs, target_bytes=self.shard_bytes)
        mapped = ctx.map(conversations.conversations_shard, groups, messages=self.messages, on_error=self.on_error)
        return Documents.write(ctx.output, shards=mapped.shards, meta=ingest.total(mapped))
