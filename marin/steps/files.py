"""`Files`: text and JSON-lines files, anywhere fsspec reaches, as documents."""

from typing import Annotated, Literal

from pydantic import Field

from marin.base.config import ElideIf, Placement, Several
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Documents, Folder
from marin.graph.context import Context
from marin.graph.step import Step
from marin.steps.origin import check_origin


class Files(Step[Documents]):
    """Documents from files, pinned by content when planned; where the files lie does not count.

    Plain, or compressed as the suffix says: `.gz`, `.zst`, `.xz`, `.bz2`.
    """

    version = 4

    url: Placement[str | None] = None
    """Pattern such as `s3://lab/corpus/**/*.jsonl.zst`; only paths relative to its literal folder count."""
    folder: Annotated[Step[Folder] | None, ElideIf(None)] = None
    """In place of `url`: a folder that a step makes, such as `Download`."""
    match: Annotated[str, ElideIf("**")] = "**"
    """Which of the folder's files, as a pattern: `*` within a folder, `**` across."""
    exclude: Placement[Several[str]] = ()
    """Patterns relative to that folder, such as `site-packages/**`."""
    text: str | None = None
    """Field of each JSON line that holds the text, nested as `a.b`; None: each file is a document (for texts)."""
    id: Annotated[str | None, ElideIf(None)] = None
    """Field that names the document, nested as `a.b`; None: its path, and in a file of lines the line."""
    on_error: Literal["fail", "skip", "quarantine"] = "fail"
    """What one bad file or line costs; skipped and quarantined ones are counted."""
    max_errors: Annotated[int | None, ElideIf(None), Field(ge=0)] = None
    """Bad documents over all files that are too many by one more; None: any number."""
    max_error_fraction: Annotated[float | None, ElideIf(None), Field(ge=0, le=1)] = None
    """The same as a share of all documents, 0 to 1."""
    max_document_bytes: Annotated[int, ElideIf(2_000_000_000), Field(ge=1)] = 2_000_000_000
    """Longest line or file that is taken; memory is about nine times the longest one there is."""
    max_ratio: Annotated[float, ElideIf(250.0), Field(gt=1)] = 250.0
    """How far an archive may expand, beyond its first 64 MiB; text stays below 100."""
    shard_bytes: int = Field(default=64_000_000, ge=1)
    """Mean size of the groups that small files are gathered into, and of the pieces that large ones are cut into."""

    def model_post_init(self, context: object, /) -> None:
        """Check that there is one origin, and that an id can be found."""
        check_origin(self, self.url, self.folder, self.match, self.exclude)
        if self.id is not None and self.text is None:
            raise ConfigurationError(
                "Files got a field for the id and none for the text",
                where="Files.text",
                hint='give text="text" for files of JSON lines, or leave out `id`',
            )

    def inputs(self) -> tuple[str, ...]:
        """The pattern, and the exclusions marked with `!`."""
        return () if self.url is None else (self.url, *(f"!{pattern}" for pattern in self.exclude))

    def run(self, ctx: Context) -> Documents:
        """Read, check and regroup the files."""
        from marin.data import ingest, sources

        files = ctx.inputs if self.folder is None else sources.chosen(ctx.load(self.folder).files, self.match)
        shards = ingest.ingest_files(
            files,
            ctx.map,
            shard_bytes=self.shard_bytes,
            text=self.text,
            id=self.id,
            on_error=self.on_error,
            max_document_bytes=self.max_document_bytes,
            max_ratio=self.max_ratio,
        )
        meta = ingest.total(
            [shard.value for shard in shards], max_errors=self.max_errors, max_error_fraction=self.max_error_fraction
        )
        return Documents.write(ctx.output, shards=shards, meta=meta)
