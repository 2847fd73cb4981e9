"""`HuggingFace`: a dataset of the Hugging Face hub as documents, at the commit that its revision was when planned."""

import re
from typing import Annotated, Literal

from pydantic import Field

from marin.base.config import Placement, Several
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.step import Step

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class HuggingFace(Step[Documents]):
    """Documents of a dataset's Parquet files, or of its files of JSON lines, read from the hub where they are.

    The plan takes the commit that the revision is then, and pins files by the hub's own digests, which reading checks;
    name and revision do not count beside them. Needs `pip install marin[hub]`; private ones need HF_TOKEN.
    """

    version = 2

    dataset: Placement[str]
    """`OWNER/NAME`."""
    revision: Placement[str] = "main"
    """Branch, tag or commit."""
    files: Placement[str] = "**/*.parquet"
    """Pattern of files, such as `data/train-*.parquet` or `en/*.jsonl.zst`: all Parquet, or all lines."""
    text: str
    """Column or field that holds the text, nested as `a.b`."""
    id: str | None = None
    """Column or field that names the document; None: its path, and row or line."""
    meta: Several[str] | None = None
    """Whole columns of Parquet that become the document's `meta`; None: all that is left."""
    on_error: Literal["fail", "skip", "quarantine"] = "fail"
    """What one bad document costs; skipped and quarantined ones are counted."""
    max_errors: Annotated[int | None, Field(ge=0)] = None
    """Bad documents over all files that are too many by one more; None: any number."""
    max_error_fraction: Annotated[float | None, Field(ge=0, le=1)] = None
    """The same as a share of all documents, 0 to 1."""
    max_document_bytes: int = Field(default=2_000_000_000, ge=1)
    """Longest text, or line, that is taken."""
    shard_bytes: int = Field(default=64_000_000, ge=1)
    """Mean size of the groups that small files are gathered into, and of the pieces that large ones are cut into."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse a name that is none."""
        if not _REPOSITORY.fullmatch(self.dataset):
            raise ConfigurationError(
                f"HuggingFace takes a dataset as OWNER/NAME, got {self.dataset!r}",
                where="HuggingFace.dataset",
                hint="give the two last parts of the dataset's address; `revision` and `files` are fields of their own",
            )

    def inputs(self) -> tuple[str, ...]:
        """The files' URLs as a pattern."""
        revision = self.revision if self.revision.startswith("refs/") else self.revision.replace("/", "%2F")
        return (f"hf://datasets/{self.dataset}@{revision}/{self.files}",)

    def run(self, ctx: Context) -> Documents:
        """Read, check and regroup the documents."""
        from marin.data import ingest, parquet_shards

        shards = parquet_shards.ingest_either(
            ctx.inputs,
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
