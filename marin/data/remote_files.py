"""Which files are downloaded, and what each must be; values only, so that a plan needs no network."""

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from marin.base.config import Config
from marin.base.errors import ConfigurationError

_SHA256 = re.compile("[0-9a-f]{64}")


class RemoteFile(Config):
    """One file behind an http or https URL."""

    url: str
    sha256: str | None = None
    """What its bytes must have, 64 hex digits; None: the first download decides, and its result is kept."""
    path: str | None = None
    """What it is called in the folder; None: the last part of the URL's path."""

    @property
    def name(self) -> str:
        """The path in the folder."""
        return self.path or unquote(urlsplit(self.url).path).rpartition("/")[2]

    def model_post_init(self, context: object, /) -> None:
        """Refuse what can never be downloaded or named."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"RemoteFile takes http and https URLs, got {self.url!r}",
                where="RemoteFile.url",
                hint="files in buckets and folders need no download: Files(url=...) reads them where they are",
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(
                "RemoteFile got a URL with a name or password, which every record of the run would show",
                where="RemoteFile.url",
                hint="give a URL that needs none, or download the file yourself and give its folder to Files(url=...)",
            )
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise ConfigurationError(
                f"RemoteFile got {self.sha256!r} for a sha256",
                where="RemoteFile.sha256",
                hint="give 64 hex digits in small letters, as `sha256sum` prints them",
            )
        path = PurePosixPath(self.name)
        if not self.name or path.is_absolute() or ".." in path.parts or "\\" in self.name or str(path) != self.name:
            raise ConfigurationError(
                f"{self.name!r} is no path for a file in a folder",
                where="RemoteFile.path",
                hint='give path="...", such as path="data/part.jsonl.gz"',
            )
