"""Datasets of the Hugging Face hub, from a server of the test's own that speaks as much of its interface as is asked.

The client reads endpoint and offline mode from the environment when it is imported, so what talks to it is a process.
"""

import gzip
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyarrow import parquet

from marin import HuggingFace
from marin.base.errors import ConfigurationError
from marin.fs.hashing import hasher_like, is_digest
from marin.fs.hub import at_commit, parse_hub_url

LINES = gzip.compress(b'{"text": "line one"}\n{"text": "line two"}\n')


def table(*texts: str) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"body": list(texts), "n": list(range(len(texts)))}), sink, row_group_size=2)
    return sink.getvalue().to_pybytes()


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.asked: list[str] = []
        self.refuse: list[int] = []

    def commit(self, branch: str, **files: bytes) -> str:
        """Put files on a branch; returns the commit."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[commit] = {name.replace("__", "/").replace("_DOT_", "."): data for name, data in files.items()}
        self.branches[branch] = commit
        return commit


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        if self.server.refuse:
            self.answer(self.server.refuse.pop(), b"{}")
            return
        root = "/api/datasets/lab/web/"
        if path.startswith(root + "revision/") or path == root.rstrip("/"):
            asked = path.removeprefix(root + "revision/") if "/revision/" in path else "main"
            commit = self.server.branches.get(asked, asked)
            if commit in self.server.commits:
                self.answer(200, json.dumps({"id": "lab/web", "sha": commit, "siblings": []}).encode())
            else:
                self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
        elif path.startswith(root + "tree/"):
            commit, _, below = path.removeprefix(root + "tree/").partition("/")
            self.answer(200, json.dumps(self.tree(commit, below)).encode(), Content_Type="application/json")
        elif path.startswith("/datasets/lab/web/resolve/"):
            commit, _, name = path.removeprefix("/datasets/lab/web/resolve/").partition("/")
            self.file(self.server.commits[commit][name])
        else:
            self.answer(401, b"{}", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def tree(self, commit: str, below: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        folders = set()
        for name, data in self.server.commits[commit].items():
            if below and not name.startswith(below + "/"):
                continue
            entry = {"type": "file", "path": name, "size": len(data)}
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if len(data) > 400:  # the hub keeps large files apart
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            found.append(entry)
            folders |= {str(parent) for parent in Path(name).parents} - {"."}
        return [*found, *({"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders))]

    def file(self, data: bytes) -> None:
        asked = self.headers["Range"]
        if not asked:
            self.answer(200, data)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last or len(data)) + 1]
        self.answer(206, part, Content_Range=f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


SCRIPT = """
import json, sys
import marin
from marin.data.documents import read_documents
results = []
for options in json.loads(sys.argv[1]):
    store = options.pop("store", sys.argv[2])
    try:
        documents = marin.run(marin.HuggingFace(**options), store=store, backend="inline")
    except marin.MarinError as error:
        results.append({"error": str(error)})
    else:
        rows = [[d.id, d.text, d.meta] for shard in documents.shards for d in read_documents(shard)]
        results.append({"rows": rows, "digest": documents.digest, "meta": documents.meta, "n": len(documents.shards)})
print(json.dumps(results))
"""


def ask(hub: Hub, store: Path, *steps: dict[str, Any]) -> list[dict[str, Any]]:
    """Run steps one after another in a process that knows this hub."""
    named = [{"dataset": "lab/web", "text": "body", **options} for options in steps]
    results: list[dict[str, Any]] = run_script(hub, SCRIPT, json.dumps(named), str(store))
    return results


def run_script(hub: Hub, script: str, *arguments: str) -> Any:
    """Return the JSON that a script writes at the end, in a process that knows this hub."""
    command = [sys.executable, "-c", script, *arguments]
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "no_proxy": "127.0.0.1",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_hugging_face_reads_parquet_and_lines_at_the_commit_of_the_plan(hub: Hub, tmp_path: Path) -> None:
    texts = ["one", "two", "three"]
    files = {
        "data__a_DOT_parquet": table(*texts),
        "en__x_DOT_jsonl_DOT_gz": LINES,
        "README_DOT_md": b"hi",
    }
    commit = hub.commit("main", **files)
    hub.commit("next/one", **files | {"data__a_DOT_parquet": table("other"), "data__b_DOT_parquet": table("more")})
    renamed = hub.commit("same", **files | {"README_DOT_md": b"another"})
    cut = {"store": str(tmp_path / "cut"), "shard_bytes": 50}
    first, lines, other, same, pieces = ask(
        hub,
        tmp_path / "store",
        {},
        {"files": "en/*.jsonl.gz", "text": "text"},
        {"revision": "next/one", "meta": []},
        {"revision": renamed},
        cut,
    )
    assert first["rows"] == [[f"data/a.parquet:{n}", text, f'{{"n":{n - 1}}}'] for n, text in enumerate(texts, 1)]
    assert [row[1] for row in lines["rows"]] == ["line one", "line two"]
    assert [row[1:] for row in other["rows"]] == [["other", "{}"], ["more", "{}"]]
    assert same["digest"] == first["digest"]  # what changed is not read
    assert (pieces["rows"], pieces["n"]) == (first["rows"], 2)
    read = [path for path in hub.asked if "/resolve/" in path]
    assert any(commit in path for path in read)
    assert not any("/main/" in path for path in read)
    assert not any(renamed in path for path in read)
    assert not any("README" in path for path in read)


def test_hugging_face_that_cannot_be_read_says_why(hub: Hub, tmp_path: Path) -> None:
    hub.commit("main", a_DOT_parquet=table("one"), b_DOT_jsonl=b'{"body": "x"}\n')
    answers = ask(
        hub,
        tmp_path,
        {"dataset": "lab/private"},
        {"revision": "gone"},
        {"files": "c/*"},
        {"files": "*"},
        {"files": "*.jsonl", "meta": ["n"]},
        {"text": "bdy"},
    )
    said = [
        "the hub shows no dataset lab/private.*HF_TOKEN",
        "lab/web has no revision 'gone'",
        "no file matches 'hf://datasets/lab/web@main/c/",
        "not of one kind: `a.parquet` is Parquet and `b.jsonl` is not",
        "`meta` chooses columns of Parquet",
        "no column `bdy`.*did you mean `body`",
    ]
    for answer, pattern in zip(answers, said, strict=True):
        assert re.search(f"(?s){pattern}", answer["error"]), (pattern, answer["error"])


def test_hugging_face_file_that_is_not_what_the_listing_said_never_gives_a_result(hub: Hub, tmp_path: Path) -> None:
    commit = hub.commit("main", a_DOT_parquet=table("one"))
    right = hub.commits[commit]["a.parquet"]
    hub.commits[commit] = Lying(right)
    (answer,) = ask(hub, tmp_path, {})
    assert "input changed during the run: `a.parquet`" in answer["error"]


class Lying(dict[str, bytes]):
    """Files whose listing is of other bytes than what is read."""

    def __init__(self, data: bytes) -> None:
        super().__init__({"a.parquet": data})

    def __getitem__(self, name: str) -> bytes:
        data = super().__getitem__(name)
        return data[:-20] + b"x" + data[-19:]


PINNED = """
import json, sys
from dataclasses import astuple
from marin import fs
from marin.fs.pins import check_unchanged, pin
pins = pin(sys.argv[1:])
check_unchanged(pins)
print(json.dumps([[*astuple(file), fs.read_file(file).decode()] for file in pins]))
"""


def test_pins_of_hub_addresses_are_the_hubs_digests_and_are_checked_when_read(hub: Hub) -> None:
    commit = hub.commit("main", data__small_DOT_txt=b"small", data__large_DOT_txt=b"large" * 200)
    root = f"hf://datasets/lab/web@{commit}/data"
    large, small = run_script(hub, PINNED, "hf://datasets/lab/web/data/*.txt")
    sha256, sha1 = hashlib.sha256(b"large" * 200).hexdigest(), hashlib.sha1(b"blob 5\0small").hexdigest()
    assert large == ["large.txt", f"{root}/large.txt", 1000, f"sha256:{sha256}", "large" * 200]
    assert small == ["small.txt", f"{root}/small.txt", 5, f"git-sha1:{sha1}", "small"]
    assert run_script(hub, PINNED, f"{root}/small.txt") == [small]


def test_hugging_face_hub_that_is_busy_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    hub.commit("main", a_DOT_parquet=table("one"))
    hub.refuse = [503]
    (answer,) = ask(hub, tmp_path, {})
    assert [row[1] for row in answer["rows"]] == ["one"]


@pytest.mark.parametrize("dataset", ["web", "datasets/lab/web", "https://huggingface.co/datasets/lab/web", "lab/we b"])
def test_hugging_face_of_no_repository_is_refused(dataset: str) -> None:
    with pytest.raises(ConfigurationError, match="takes a dataset as OWNER/NAME"):
        HuggingFace(dataset=dataset, text="text")


def test_hub_urls_have_parts() -> None:
    commit = "a" * 40
    assert parse_hub_url("hf://datasets/lab/web@a%2Fb/x/*.parquet") == ("datasets", "lab/web", "a/b", "x/*.parquet")
    assert parse_hub_url("hf://datasets/lab/web@refs/convert/parquet/x") == (
        "datasets",
        "lab/web",
        "refs/convert/parquet",
        "x",
    )
    assert parse_hub_url("hf://lab/model") == ("models", "lab/model", "", "")
    assert at_commit(f"hf://datasets/lab/web@{commit}/x") == f"hf://datasets/lab/web@{commit}/x"
    with pytest.raises(ConfigurationError, match="names no repository"):
        parse_hub_url("hf://datasets/lab")


def test_digests_of_other_kinds_are_those_of_git_and_sha256sum() -> None:
    for digest in (
        "git-sha1:ce013625030ba8dba906f756967f9e9ca394464a",
        f"sha256:{hashlib.sha256(b'hello' + bytes([10])).hexdigest()}",
    ):
        hasher = hasher_like(digest, 6)
        hasher.update(b"hello\n")
        assert is_digest(digest, hasher)
        hasher.update(b"x")
        assert not is_digest(digest, hasher)
