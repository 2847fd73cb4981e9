"""Downloads from a server of the test's own, which breaks off, refuses, forgets its ranges, lies and changes."""

import hashlib
import http.server
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import marin
from marin import Download, Files, RemoteFile, fs
from marin.base.errors import ConfigurationError, InputError, MarinError
from marin.data import download_parts
from marin.data.documents import read_documents
from marin.data.download import FIRST_PAUSE, TRIES, Changed, download_shard, fetch, remote_shard
from marin.data.download_parts import Parts

DATA = b"".join(b'{"text": "line %d"}\n' % number for number in range(5000))


@dataclass
class Served:
    """One file, and what goes wrong with it: `cuts` are bytes after which one answer each breaks off."""

    data: bytes = DATA
    ranges: bool = True
    etag: str | None = '"one"'
    length: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    after: Callable[["Served"], None] = lambda served: None
    hangs: bool = False
    asked: list[str | None] = field(default_factory=list)
    conditions: list[str | None] = field(default_factory=list)
    honours: bool = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Served] = {}
        self.ended = threading.Event()

    def serve(self, path: str, **options: Any) -> Served:
        self.files[path] = Served(**options)
        return self.files[path]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        served = self.server.files.get(self.path.partition("?")[0])
        if served is None:
            self.send_error(404)
            return
        asked = self.headers["Range"]
        served.asked.append(asked)
        if served.hangs:
            self.server.ended.wait()
            return
        if served.statuses:
            status = served.statuses.pop(0)
            self.send_response(status)
            for name, value in served.headers.items():
                self.send_header(name, value)
            self.end_headers()
            return
        served.conditions.append(self.headers["If-Range"])
        if asked and served.honours and self.headers["If-Range"] not in (None, served.etag):
            asked = None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and served.ranges else 0
        if start >= len(served.data) > 0:
            self.send_error(416)
            return
        body = served.data[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(served.data) - 1}/{len(served.data)}")
        if served.etag:
            self.send_header("ETag", served.etag)
        if served.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = served.cuts.pop(0) if served.cuts else None
        self.wfile.write(body[:cut])
        served.after(served)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.ended.set()
        running.shutdown()
        thread.join()


def fetched(url: str, **options: Any) -> tuple[bytes, list[float]]:
    sink, pauses = io.BytesIO(), []
    result = fetch(url, sink, **{"max_bytes": 10**9, "timeout": 10.0, "pause": pauses.append} | options)
    assert (result.size, result.sha256) == (len(sink.getvalue()), hashlib.sha256(sink.getvalue()).hexdigest())
    return sink.getvalue(), pauses


def test_download_makes_a_folder_that_files_reads(server: Server, tmp_path: Path) -> None:
    server.serve("/a.jsonl", cuts=[10_000, 1, 30_000])
    server.serve("/deep/b.txt", data=b"no lines")
    sha256 = hashlib.sha256(DATA).hexdigest()
    folder = Download(
        files=[
            RemoteFile(url=server.url("/a.jsonl"), sha256=sha256),
            RemoteFile(url=server.url("/deep/b.txt?x=1"), path="deep/c.txt"),
        ]
    )
    step = Files(folder=folder, match="*.jsonl", text="text")
    documents = marin.run(step, store=tmp_path, backend="inline")
    texts = [(d.id, d.text) for shard in documents.shards for d in read_documents(shard)]
    assert texts[:2] == [("a.jsonl:1", "line 0"), ("a.jsonl:2", "line 1")]
    assert len(texts) == 5000
    artifact = marin.load(folder, store=tmp_path)
    assert (artifact.read("a.jsonl"), artifact.read("deep/c.txt")) == (DATA, b"no lines")
    assert artifact.meta["fetched"][0]["sha256"] == sha256
    assert artifact.meta["bytes"] == len(DATA) + 8
    server.files.clear()  # what is there needs no server
    assert marin.run(step, store=tmp_path, backend="inline").digest == documents.digest


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_connections_are_resumed(server: Server, ranges: bool) -> None:
    cuts = [10_000, 20_000, 5_000, 1, 2, 3] if ranges else [10_000, 20_000, 30_000, 40_000]
    served = server.serve("/a", ranges=ranges, cuts=list(cuts))
    data, pauses = fetched(server.url("/a"))
    assert data == DATA
    assert served.asked[:3] == [None, "bytes=10000-", f"bytes={30_000 if ranges else 20_000}-"]
    assert len(served.asked) == len(cuts) + 1 == len(pauses) + 1
    assert max(pauses) == 2 * FIRST_PAUSE  # each brought something new


@pytest.mark.parametrize(("ranges", "said"), [(True, "[.]"), (False, "does not resume by ranges")])
def test_connection_that_breaks_without_end_gives_up_after_tries_without_a_byte(
    server: Server, ranges: bool, said: str
) -> None:
    served = server.serve("/a", ranges=ranges, cuts=[1000, *([0] * 20 if ranges else [1000] * 20)])
    with pytest.raises(
        InputError, match=rf"the connection ended at byte 1000.*in 5 tries.*1000 bytes had come(.|\n)*{said}"
    ):
        fetched(server.url("/a"))
    assert len(served.asked) == TRIES


def test_server_that_is_busy_is_asked_again_when_it_says(server: Server) -> None:
    server.serve("/a", statuses=[503, 429], headers={"Retry-After": "7"})
    data, pauses = fetched(server.url("/a"))
    assert (data, pauses) == (DATA, [7.0, 7.0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"statuses": [403]}, "answers 403 Forbidden(.|\n)*ask for access"),
        ({"statuses": [500] * 9}, "answers 500 Internal Server Error, in 5 tries"),
        ({"length": False}, "does not say how long the file is(.|\n)*give the sha256"),
        ({"data": b"x" * 2000}, "at least 2.0 kB, more than the 1.0 kB allowed"),
        ({"hangs": True}, "no answer within 0.1 seconds, in 5 tries"),
        ({"statuses": [302], "headers": {"Location": "ftp://x/y"}}, "the server leads to 'ftp://x/y'"),
    ],
)
def test_download_that_cannot_be_says_why(server: Server, options: dict[str, Any], said: str) -> None:
    server.serve("/a", **options)
    with pytest.raises(InputError, match=said) as error:
        fetched(server.url("/a"), max_bytes=1000, timeout=0.1 if "hangs" in options else 10.0)
    assert error.value.where == server.url("/a")


def test_file_that_grows_above_the_limit_without_saying_its_length_is_refused(server: Server) -> None:
    server.serve("/a", length=False)
    with pytest.raises(InputError, match="allowed"):
        fetched(server.url("/a"), max_bytes=1000, needs_length=False)


def test_server_that_leads_elsewhere_is_followed(server: Server) -> None:
    server.serve("/a", statuses=[302], headers={"Location": server.url("/b")})
    served = server.serve("/b", data=DATA[::-1])
    assert fetched(server.url("/a"))[0] == DATA[::-1]
    assert len(served.asked) == 1


def test_server_that_is_not_there_is_named() -> None:
    with Server() as gone:
        url = gone.url("/a")
    with pytest.raises(InputError, match="refused, in 5 tries"):
        fetched(url)


def other_etag(served: Served) -> None:
    served.etag = '"two"'


def other_data(served: Served) -> None:
    served.data = served.data[::-1]


def shorter(served: Served) -> None:
    served.data = served.data[:500]


@pytest.mark.parametrize(
    ("after", "ranges", "said"),
    [
        (other_etag, True, 'its ETag was "one" and is "two"'),
        (other_data, False, "its first 1000 bytes are other ones now"),
        (shorter, True, "it has no byte 1000 any more"),
        (shorter, False, "its size was"),
    ],
)
def test_file_that_changes_while_it_is_resumed_is_an_error(
    server: Server, after: Callable[[Served], None], ranges: bool, said: str
) -> None:
    server.serve("/a", ranges=ranges, cuts=[1000], after=after)
    with pytest.raises(InputError, match=f"changed on the server while it was downloaded: {said}"):
        fetched(server.url("/a"))


def test_download_of_another_digest_or_nothing_leaves_no_result_and_keeps_what_is_whole(
    server: Server, tmp_path: Path
) -> None:
    good, bad = server.serve("/good"), server.serve("/bad")
    files = [RemoteFile(url=server.url("/good")), RemoteFile(url=server.url("/bad"), sha256="0" * 64)]
    with pytest.raises(MarinError, match=f"sha256 {hashlib.sha256(DATA).hexdigest()}, and not 0000"):
        marin.run(Download(files=files), store=tmp_path, backend="inline")
    assert (len(good.asked), len(bad.asked)) == (1, 2)  # a shard that fails is tried once more
    mended = [files[0], RemoteFile(url=server.url("/bad"))]
    marin.run(Download(files=mended), store=tmp_path, backend="inline")
    assert len(good.asked) == 1
    with pytest.raises(MarinError, match="answers 404"):
        marin.run(Download(files=[RemoteFile(url=server.url("/none"))]), store=tmp_path, backend="inline")


def test_download_without_digest_is_pinned_by_the_first_and_as_of_downloads_again(
    server: Server, tmp_path: Path
) -> None:
    served = server.serve("/a", data=b"old")
    step = Download(files=[RemoteFile(url=server.url("/a"))])
    assert marin.run(step, store=tmp_path, backend="inline").read("a") == b"old"
    served.data = b"new"
    limited = Download(files=step.files, max_bytes=10, timeout=1.0)  # limits are no part of what it is
    assert marin.run(limited, store=tmp_path, backend="inline").read("a") == b"old"
    assert len(served.asked) == 1
    later = Download(files=step.files, as_of="2026-12")
    assert marin.run(later, store=tmp_path, backend="inline").read("a") == b"new"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: RemoteFile(url="s3://b/a"), "takes http and https URLs"),
        (lambda: RemoteFile(url="https://me:secret@host/a"), "a URL with a name or password"),
        (lambda: RemoteFile(url="https://host/a", sha256="ABC"), "'ABC' for a sha256"),
        (lambda: RemoteFile(url="https://host/"), "'' is no path"),
        (lambda: RemoteFile(url="https://host/a", path="../a"), "'../a' is no path"),
        (lambda: Download(files=[RemoteFile(url="https://h/x/a"), RemoteFile(url="https://h/y/a")]), "both be called"),
        (lambda: Files(text="text"), "Files needs a `url` or a `folder`"),
        (lambda: Files(url="x", folder=Download(files=[RemoteFile(url="https://h/a")])), "not both"),
        (lambda: Files(url="x", match="*"), "chooses in a `folder`"),
    ],
)
def test_wrong_downloads_fail_when_they_are_constructed(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        wrong()


def test_files_of_a_folder_without_a_match_name_what_it_has(server: Server, tmp_path: Path) -> None:
    server.serve("/a.txt")
    folder = Download(files=[RemoteFile(url=server.url("/a.txt"))])
    with pytest.raises(MarinError, match=r"no file matches '\*\.jsonl'; the folder has `a\.txt`"):
        marin.run(Files(folder=folder, match="*.jsonl", text="t"), store=tmp_path, backend="inline")


KILLED = """
import os, signal, sys
import marin
from marin import fs
from marin.data import download_parts

download_parts.PART_BYTES = 10_000
create = fs.create

def create_and_die(url, data, **options):
    made = create(url, data, **options)
    if "/00000002-" in url:
        os.kill(os.getpid(), signal.SIGKILL)
    return made

fs.create = create_and_die
marin.run(marin.Download(files=[marin.RemoteFile(url=sys.argv[1])]), store=sys.argv[2], backend="inline")
"""


def killed(url: str, store: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, url, str(store)], capture_output=True, check=False, timeout=60)
    assert done.returncode == -9, done.stderr.decode()


def parts_in(store: Path) -> list[Path]:
    return [path for path in store.rglob("0000*-*") if "checkpoints" in path.parts]


def test_killed_download_goes_on_within_the_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = server.serve("/a")
    killed(server.url("/a"), tmp_path / "killed")
    assert len(parts_in(tmp_path / "killed")) == 3
    monkeypatch.setattr(download_parts, "PART_BYTES", 10_000)
    step = Download(files=[RemoteFile(url=server.url("/a"))])
    folder = marin.run(step, store=tmp_path / "killed", backend="inline")
    assert folder.read("a") == DATA
    assert served.asked == [None, "bytes=30000-"]
    assert served.conditions == [None, '"one"']
    assert parts_in(tmp_path / "killed") == []
    assert folder.digest == marin.run(step, store=tmp_path / "whole", backend="inline").digest


def left(server: Server, folder: Path, **options: Any) -> Served:
    """Serve a file of which a download has left three parts of 10,000 bytes."""
    served = server.serve("/a", cuts=[35_000, *[0] * TRIES], **options)
    with pytest.raises(InputError, match="35000 bytes had come"):
        fetched(server.url("/a"), parts=Parts(str(folder)))
    served.cuts.clear()
    served.asked.clear()
    return served


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_parts, "PART_BYTES", 10_000)


@pytest.mark.usefixtures("small_parts")
def test_parts_are_continued_without_ranges_and_from_before_a_damaged_one(server: Server, tmp_path: Path) -> None:
    left(server, tmp_path, ranges=False)
    assert fetched(server.url("/a"), parts=Parts(str(tmp_path)))[0] == DATA
    Parts(str(tmp_path)).discard()
    served = left(server, tmp_path)
    (damaged,) = tmp_path.glob("00000001-*")
    damaged.write_bytes(bytes(10_000))
    assert fetched(server.url("/a"), parts=Parts(str(tmp_path)))[0] == DATA
    assert served.asked == ["bytes=10000-"]
    assert b"".join(Parts(str(tmp_path)).read()) == DATA[: len(DATA) // 10_000 * 10_000]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("honours", [True, False])
def test_parts_of_a_file_that_is_another_one_now_are_thrown_away(server: Server, tmp_path: Path, honours: bool) -> None:
    served = left(server, tmp_path / "parts", honours=honours)
    served.data, served.etag = DATA.upper(), '"two"'
    with pytest.raises(Changed, match="ETag"):
        fetched(server.url("/a"), parts=Parts(str(tmp_path / "parts")))
    shard = remote_shard(
        RemoteFile(url=server.url("/a")), as_of="", max_bytes=10**9, timeout=9.0, parts=str(tmp_path / "all")
    )
    (tmp_path / "all").mkdir()
    (tmp_path / "parts").rename(tmp_path / "all" / shard.name)
    output = fs.FolderOutput(str(tmp_path / "made"))
    download_shard(shard, output)
    assert (tmp_path / "made" / "a").read_bytes() == DATA.upper()
    assert list((tmp_path / "all").iterdir()) == []


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_no_parts_are_kept_of_a_file_without_a_strong_validator(
    server: Server, tmp_path: Path, etag: str | None
) -> None:
    left(server, tmp_path / "parts", etag=etag)
    assert not (tmp_path / "parts").exists()
