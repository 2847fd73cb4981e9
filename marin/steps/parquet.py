"""`Parquet`: rows of Parquet files, anywhere fsspec reaches, as documents."""

from typing import Annotated, Literal

from pydantic import Field

from marin.base.config import ElideIf, Placement, Several
from marin.graph.artifact import Documents, Folder
from marin.graph.context import Context
from marin.graph.step import Step
from marin.steps.origin import check_origin


class Parquet(Step[Documents]):
    """Documents from Parquet files, a row each, pinned by content when planned; where the files lie does not count."""

    version = 1

    url: Placement[str | None] = None
    """Pattern such as `s3://lab/corpus/**/*.parquet`; only paths relative to its literal folder count."""
    folder: Annotated[Step[Folder] | None, ElideIf(None)] = None
    """In place of `url`: a folder that a step makes, such as `Download`."""
    match: Annotated[str, ElideIf("**")] = "**"
    """Which of the folder's files, as a pattern: `*` within a folder, `**` across."""
    exclude: Placement[Several[str]] = ()
    """Patterns relative to that folder."""
    text: str
    """Column that holds the text, nested as `a.b`; strings, or bytes that are UTF-8."""
    id: str | None = None
    """Column that names the document, nested as `a.b`; None: its path and row."""
    meta: Several[str] | None = None
    """Whole columns that become the document's `meta`; None: all that is left. Those not named are not read."""
    on_error: Literal["fail", "skip", "quarantine"] = "fail"
    """What one bad row, row group or file costs; skipped and quarantined ones are counted."""
    max_errors: Annotated[int | None, Field(ge=0)] = None
    """Bad documents over all files that are too many by one more; None: any number."""
    max_error_fraction: Annotated[float | None, Field(ge=0, le=1)] = None
    """The same as a share of all documents, 0 to 1."""
    max_document_bytes: int = Field(default=2_000_000_000, ge=1)
    """Longest text that is taken."""
    shard_bytes: int = Field(default=64_000_000, ge=1)
    """Mean size of the groups that small files are gathered into; large ones are cut between row groups so."""

    def model_post_init(self, context: object, /) -> None:
        """Check that there is one origin."""
        check_origin(self, self.url, self.folder, self.match, self.exclude)

    def inputs(self) -> tuple[str, ...]:
        """The pattern, and the exclusions marked with `!`."""
        return () if self.url is None else (self.url, *(f"!{pattern}" for pattern in self.exclude))

    def run(self, ctx: Context) -> Documents:
        """Read, check and regroup the rows."""
        from marin.data import ingest, parquet_shards, sources

        files = ctx.inputs if self.folder is None else sources.chosen(ctx.load(self.folder).files, self.match)
        shards = parquet_shards.ingest_parquet(
            files,
            ctx.map,
            shard_bytes=self.shard_bytes,
            text=self.text,
            id=self.id,
            meta=self.meta,
            on_error=self.on_error,
            max_document_bytes=self.max_document_bytes,
        )
        meta = ingest.total(
            [shard.value for shard in shards], max_errors=self.max_errors, max_error_fraction=self.max_error_fraction
        )
        return Documents.write(ctx.output, shards=shards, meta=meta)
