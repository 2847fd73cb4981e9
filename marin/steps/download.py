"""`Download`: files behind http and https URLs, kept in the store."""

from typing import Annotated

from pydantic import Field

from marin.base.config import ElideIf, Placement, Several
from marin.base.errors import ConfigurationError
from marin.data.remote_files import RemoteFile
from marin.graph.artifact import Folder
from marin.graph.context import Context
from marin.graph.step import Step


class Download(Step[Folder]):
    """A folder of downloaded files, each checked; `Files` and `Parquet` read it.

    Planning asks no server. Without a `sha256` the first download decides what the file is, and the store keeps it. One
    that was killed goes on within the file, where the server says that it is still the same.
    """

    version = 1

    files: Several[RemoteFile] = Field(min_length=1)
    as_of: Annotated[str, ElideIf("")] = ""
    """Any text, such as a date; another one downloads again what has no `sha256`, or has moved."""
    max_bytes: Placement[int] = Field(default=100_000_000_000, ge=1)
    """Largest file that is taken."""
    timeout: Placement[float] = Field(default=60.0, gt=0)
    """Seconds that a server may be silent; it is asked five times in a row."""

    def model_post_init(self, context: object, /) -> None:
        """Refuse two files of one name."""
        seen: dict[str, str] = {}
        for file in self.files:
            if file.name in seen:
                raise ConfigurationError(
                    f"{seen[file.name]!r} and {file.url!r} would both be called `{file.name}`",
                    where="Download.files",
                    hint='tell them apart: RemoteFile(url=..., path="one/name")',
                )
            seen[file.name] = file.url

    def run(self, ctx: Context) -> Folder:
        """Download each file as a shard of its own."""
        from marin.data import download

        shards = [
            download.remote_shard(
                file, as_of=self.as_of, max_bytes=self.max_bytes, timeout=self.timeout, parts=ctx.checkpoints
            )
            for file in self.files
        ]
        mapped = ctx.map(download.download_shard, shards)
        values = list(mapped)
        meta = {"files": len(values), "bytes": sum(value["bytes"] for value in values), "fetched": values}
        return Folder.write(ctx.output, shards=mapped.shards, meta=meta)
