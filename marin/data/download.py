"""Bytes behind http and https URLs, whole or not at all.

A connection that breaks is opened again where it broke, by a range where the server has them. Invariant: what is
returned are the bytes of one version of the file from begin to end: a length that is not reached, a validator (ETag,
date) that changes, or a begin that is another one when it is read again is an error, as is a digest that differs.
What a killed download has left (marin/data/download_parts.py) counts as read before, and is thrown away where the file
is another one now.
"""

import hashlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, Protocol

from marin import fs
from marin.base.canonical import digest
from marin.base.errors import InputError
from marin.base.json import Json
from marin.base.units import format_size
from marin.data.download_parts import Parts, Version, validator
from marin.data.remote_files import RemoteFile
from marin.graph.files import Output, Shard

CHUNK_BYTES = 2**20
TRIES = 5
"""So many tries in a row may bring nothing new; each byte that is new renews them."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class Sink(Protocol):
    """Where the bytes go."""

    def write(self, data: bytes, /) -> object: ...


class Fetched(NamedTuple):
    """Size and sha256 of what was downloaded."""

    size: int
    sha256: str


class _Broken(Exception):
    """This try ended before the file did; another may bring the rest. `wait`: seconds the server asks for."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.wait = wait


class Changed(InputError):
    """The file on the server is not the one of which the first bytes have come."""


def remote_shard(file: RemoteFile, *, as_of: str, max_bytes: int, timeout: float, parts: str) -> Shard:
    """Return the shard of one file, and where to keep parts of it (the URL of a folder, for this step alone).

    Limits and places, which decide whether it comes and never what, are not in the shard's digest.
    """
    identity = digest(["download", file.url, file.sha256, file.name, as_of])
    value: Json = {
        "url": file.url,
        "sha256": file.sha256,
        "path": file.name,
        "max_bytes": max_bytes,
        "timeout": timeout,
        "parts": fs.join(parts, identity[:16]),
    }
    return Shard(identity[:16], identity, (), value)


def download_shard(shard: Shard, output: Output) -> Json:
    """Write the shard's file; returns its path, size and sha256. InputError when it is not to be had whole."""
    value: Any = shard.value
    parts = Parts(value["parts"])
    is_resumed = parts.begun() is not None
    try:
        fetched = _fetch_into(output, value, parts)
    except Changed:
        if not is_resumed:
            raise
        parts.discard()
        fetched = _fetch_into(output, value, parts)
    parts.discard()
    if value["sha256"] not in (None, fetched.sha256):
        raise InputError(
            f"`{value['path']}` has the sha256 {fetched.sha256}, and not {value['sha256']}",
            where=value["url"],
            hint="the file was replaced, or the answer is a page in its place: look at it, then mend url or sha256",
        )
    return {"path": value["path"], "bytes": fetched.size, "sha256": fetched.sha256}


def _fetch_into(output: Output, value: Any, parts: Parts) -> Fetched:  # Any: JSON of `remote_shard`
    with output.open(value["path"]) as sink:
        return fetch(
            value["url"],
            sink,
            max_bytes=value["max_bytes"],
            timeout=value["timeout"],
            needs_length=value["sha256"] is None,
            parts=parts,
        )


def fetch(
    url: str,
    sink: Sink,
    *,
    max_bytes: int,
    timeout: float,
    needs_length: bool = True,
    parts: Parts | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Fetched:
    """Write the bytes behind a URL to `sink`, once and in order; `timeout` is that of one read.

    Raises InputError when there is no such file, it is larger than `max_bytes`, or does not come in `TRIES` tries
    without a new byte, and Changed when it changes meanwhile, or did since `parts` were left. With `needs_length` an
    answer that does not say where it ends is refused.
    """
    taken = _Taken(url, sink, max_bytes, needs_length, parts)
    if taken.resume():
        return Fetched(taken.size, taken.sha256)
    tries = 0
    while True:
        before = taken.size
        try:
            with _answer(url, taken, timeout) as response:
                taken.take(response)
        except _Broken as error:
            tries = 1 if taken.size > before else tries + 1
            if tries >= TRIES:
                _give_up(taken, error)
            pause(max(error.wait, min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)))
        else:
            return Fetched(taken.size, taken.sha256)


def _give_up(taken: "_Taken", error: _Broken) -> NoReturn:
    got = f" {taken.size} bytes had come." if taken.size else ""
    no_ranges = "; the server does not resume by ranges, so each try begins anew" if taken.began_anew else ""
    raise InputError(
        f"cannot download: {error}, in {TRIES} tries one after the other.{got}",
        where=taken.url,
        hint=f"run again when the server answers, or take another URL{no_ranges}",
    ) from error


@contextmanager
def _answer(url: str, taken: "_Taken", timeout: float) -> Iterator[http.client.HTTPResponse]:
    """Give the server's answer; all that may pass is `_Broken`, all else InputError."""
    request = urllib.request.Request(url, headers=taken.headers())
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=timeout) as response:
            yield response
    except urllib.error.HTTPError as error:
        with error:
            _refused(url, error, taken)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            hint = "check the name in the URL, and the certificates and clock of this machine"
            raise InputError(f"the server's certificate is not trusted: {reason}", where=url, hint=hint) from error
        said = f"no answer within {timeout:g} seconds" if isinstance(reason, TimeoutError) else f"{reason}"
        raise _Broken(said or type(error).__name__) from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http and https alone, and from https to https."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:  # Any: as urllib has it
        allowed = ("https://",) if req.full_url.startswith("https://") else ("http://", "https://")
        if not newurl.startswith(allowed):
            raise InputError(
                f"the server leads to {newurl!r}", where=req.full_url, hint="give a URL that is the file itself"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refused(url: str, error: urllib.error.HTTPError, taken: "_Taken") -> NoReturn:
    said = f"the server answers {error.code} {error.reason}".rstrip()
    if error.code == 416 and taken.size:
        raise _changed(url, f"it has no byte {taken.size} any more") from error
    if error.code in _PASSING:
        asked = error.headers.get("Retry-After", "")
        raise _Broken(said, min(LONGEST_PAUSE, float(asked)) if asked.isdigit() else 0.0) from error
    hints = {
        401: "the file needs an account: download it yourself and give the folder to Files(url=...)",
        403: "the server refuses this file: ask for access, or download it yourself and use Files(url=...)",
        404: "check the URL; if the file has moved, give the new one",
    }
    raise InputError(said, where=url, hint=hints.get(error.code, "check the URL in a browser")) from error


def _changed(url: str, now: str) -> Changed:
    return Changed(
        f"the file changed on the server while it was downloaded: {now}", where=url, hint="run again to take it anew"
    )


class _Taken:
    """What has come of one file, and what later answers must agree with."""

    def __init__(self, url: str, sink: Sink, max_bytes: int, needs_length: bool, parts: Parts | None) -> None:
        self.url = url
        self.size = 0
        self.began_anew = False
        self._sink = sink
        self._max_bytes = max_bytes
        self._needs_length = needs_length
        self._parts = parts
        self._hash = hashlib.sha256()
        self._version: Version | None = None

    @property
    def sha256(self) -> str:
        """The digest of what has come."""
        return self._hash.hexdigest()

    def resume(self) -> bool:
        """Take what an earlier download has left; return whether that is all."""
        self._version = None if self._parts is None else self._parts.begun()
        if self._parts is None or self._version is None:
            return False
        for data in self._parts.read():
            self._keep(data)
        return self.size == self._version["size"]

    def headers(self) -> dict[str, str]:
        """Return the headers of the next request: the stored bytes as they are, from where the last one ended."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "marin"}
        if self.size:
            headers["Range"] = f"bytes={self.size}-"
            if (known := validator(self._version)) is not None:
                headers["If-Range"] = known  # another version comes whole in answer, and is told by its validator
        return headers

    def take(self, response: http.client.HTTPResponse) -> None:
        """Write what is new in an answer."""
        start, total = self._place(response)
        self._agree(response, total)
        if start:
            self._write(response, total)
            return
        self.began_anew = self.began_anew or self.size > 0
        self._pass_over(response)
        self._write(response, total)

    def _place(self, response: http.client.HTTPResponse) -> tuple[int, int | None]:
        """Return the byte an answer begins with, and the size of the whole if it says so."""
        length = response.length
        if response.status != 206:
            if length is None and not response.chunked and self._needs_length:
                raise InputError(
                    "the server does not say how long the file is, so that a broken connection would look like its end",
                    where=self.url,
                    hint="give the sha256 that the file must have",
                )
            return 0, length
        said = response.headers.get("Content-Range", "")
        place, _, whole = said.removeprefix("bytes ").partition("/")
        first = place.partition("-")[0]
        if not first.isdigit() or int(first) != self.size:
            raise _Broken(f"the server gave the range {said!r} for bytes from {self.size} on")
        total = int(whole) if whole.isdigit() else None
        return self.size, total if total is not None or length is None else self.size + length

    def _agree(self, response: http.client.HTTPResponse, total: int | None) -> None:
        if total is not None and total > self._max_bytes:
            raise self._too_large(total)
        version: Version = {name: response.headers.get(name) for name in ("ETag", "Last-Modified")}
        version["size"] = total
        for name, value in (self._version or {}).items():
            if value is not None and version[name] is not None and value != version[name]:
                raise _changed(self.url, f"its {name} was {value} and is {version[name]}")
        self._version = self._version or version
        if self._parts is not None and not self.size:
            self._parts.start(self._version)

    def _pass_over(self, response: http.client.HTTPResponse) -> None:
        """Read again what has come already; it must be the same."""
        again, left = hashlib.sha256(), self.size
        while left:
            chunk = response.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise _Broken(f"the connection ended at byte {self.size - left}")
            again.update(chunk)
            left -= len(chunk)
        if again.digest() != self._hash.copy().digest():
            raise _changed(self.url, f"its first {self.size} bytes are other ones now")

    def _write(self, response: http.client.HTTPResponse, total: int | None) -> None:
        while chunk := response.read(CHUNK_BYTES):
            if self.size + len(chunk) > self._max_bytes:
                raise self._too_large(self.size + len(chunk))
            self._keep(chunk)
            if self._parts is not None:
                self._parts.add(chunk)
        if total is not None and self.size != total:
            raise _Broken(f"the connection ended at byte {self.size} of {total}")

    def _keep(self, data: bytes) -> None:
        self._sink.write(data)
        self._hash.update(data)
        self.size += len(data)

    def _too_large(self, size: int) -> InputError:
        return InputError(
            f"the file has at least {format_size(size)}, more than the {format_size(self._max_bytes)} allowed",
            where=self.url,
            hint="give a larger `max_bytes` if it is meant to be so large",
        )
