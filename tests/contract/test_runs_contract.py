"""Whole runs on each kind of storage: inputs, maps, every kind of artifact, events, publishing, and the next run."""

import contextlib
import sqlite3
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import marin
from marin import (
    Checkpoint,
    Context,
    Documents,
    Files,
    Folder,
    ModelFolder,
    Records,
    Scores,
    Sequences,
    Shard,
    Shuffle,
    Step,
    Table,
    Tokenize,
    Tokenizer,
    Tokens,
    TrainTokenizer,
    Value,
    fs,
)
from marin.base.errors import InputError, StepError
from marin.data.documents import read_documents
from marin.data.loader import SequenceData
from marin.fs.pins import check_unchanged, pin
from marin.graph.artifact import Sharded
from marin.graph.files import Output
from marin.run import api
from marin.run.result import RunResult
from marin.store import EventReader


class Squares(Step[Sharded]):
    """The squares of 0 to n - 1, one a shard."""

    n: int

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(f"{number:04d}", f"number {number}", (), number) for number in range(self.n)]
        return Sharded.write(ctx.output, shards=ctx.map(square, shards).shards)


def square(shard: Shard, output: Output) -> int:
    output.write("square.txt", f"{shard.value**2}".encode())
    return int(shard.value) ** 2


class Total(Step[Value[int]]):
    """Their sum, from the values and from the files."""

    squares: Step[Sharded]

    def run(self, ctx: Context) -> Value[int]:
        contents = ctx.load(self.squares).contents
        read = sum(int(contents.reader.read(shard.file("square.txt"))) for shard in contents.shards)
        assert read == sum(shard.value for shard in contents.shards)
        print(f"the sum is {read}")
        ctx.metric(total=read)
        return Value.write(ctx.output, read)


def ran(targets: list[Step], store: str) -> RunResult:
    return api.run_plan(api.plan(targets, store=store), store=store, backend="inline")


def states(result: RunResult) -> dict[str, str]:
    return {step.name: step.state for step in result.steps}


def test_run_with_a_map_then_a_hit_then_one_more_shard(root: str):
    assert marin.run(Total(squares=Squares(n=8)), store=root, backend="inline").value == 140
    again = ran([Total(squares=Squares(n=8))], root)
    assert states(again) == {"squares": "cached", "total": "cached"}
    longer = ran([Total(squares=Squares(n=9))], root)
    assert longer.step("squares").shards == {"total": 9, "reused": 8, "computed": 1}
    assert marin.load(Total(squares=Squares(n=9)), store=root).value == 204
    events = EventReader(root, longer.run).poll()
    told = [(event["step"], event["state"]) for event in events if event["kind"] == "state" and "step" in event]
    assert ("total", "running") in told
    assert told[-1] == ("total", "done")
    logs = [file for file in fs.list_files(root) if file.path.endswith("log.txt")]
    assert any(b"the sum is 204" in fs.read(file.url) for file in logs)


def test_publish_copies_once_and_again_when_the_artifact_changes(root: str):
    place = fs.join(root.rpartition("/")[0], "published")
    for n in (2, 2, 3):
        artifact = marin.run(Squares(n=n).at(place), store=root, backend="inline")
        names = [file.path for file in fs.list_files(place)]
        assert names[:2] == ["manifest.json", "shards/00000/square.txt"]
        assert len(names) == n + 1
        assert artifact.digest.encode() in fs.read(fs.join(place, "manifest.json"))


class Everything(Step[Folder]):
    """One file that is larger than a part of a multipart upload, one that is empty, one deep down."""

    def run(self, ctx: Context) -> Folder:
        with ctx.output.open("large.bin") as file:
            for number in range(7):
                file.write(bytes([number]) * (1 << 20))
        ctx.output.write("empty", b"")
        ctx.output.write("deep/er/näme.txt", b"x")
        return Folder.write(ctx.output)


class MadeTable(Step[Table]):
    def run(self, ctx: Context) -> Table:
        return Table.write(ctx.output, {"n": [1, 2], "text": ["a", "b"]})


class MadeScores(Step[Scores]):
    def run(self, ctx: Context) -> Scores:
        return Scores.write(ctx.output, {"loss": 0.5}, details={"n": 3})


class MadeCheckpoint(Step[Checkpoint]):
    def run(self, ctx: Context) -> Checkpoint:
        ctx.output.write("model.safetensors", b"weights")
        return Checkpoint.write(ctx.output, meta={"step": 3})


class MadeModel(Step[ModelFolder]):
    def run(self, ctx: Context) -> ModelFolder:
        ctx.output.write("config.json", b"{}")
        return ModelFolder.write(ctx.output, meta={"parity": 0.0})


def test_every_kind_of_artifact_is_read_back_as_it_was_written(root: str):
    made = [Everything(), MadeTable(), MadeScores(), MadeCheckpoint(), MadeModel()]
    folder, table, scores, checkpoint, model = marin.run(made, store=root, backend="inline")
    assert [file.path for file in folder.contents.files] == ["deep/er/näme.txt", "empty", "large.bin"]
    assert (folder.read("empty"), folder.read("deep/er/näme.txt")) == (b"", b"x")
    assert folder.read("large.bin") == b"".join(bytes([number]) * (1 << 20) for number in range(7))
    assert table.to_arrow() == pa.table({"n": [1, 2], "text": ["a", "b"]})
    assert (scores.metrics, checkpoint.meta, model.meta) == ({"loss": 0.5}, {"step": 3}, {"parity": 0.0})
    assert fs.read(checkpoint.file("model.safetensors").url) == b"weights"
    assert set(states(ran(made, root)).values()) == {"cached"}


def test_text_to_sequences_gives_the_same_digests_on_every_storage(root: str, tmp_path: Path):
    texts = Records(texts=[f"the {number}th text of a few words, and no more\n" * 4 for number in range(40)])
    tokenizer = TrainTokenizer(documents=texts, vocab_size=300)
    tokens = Tokenize(documents=texts, tokenizer=tokenizer)
    rows = Shuffle(tokens=tokens, context=16, seed=1)
    made = marin.run([texts, tokenizer, tokens, rows], store=root, backend="inline")
    assert [type(each) for each in made] == [Documents, Tokenizer, Tokens, Sequences]
    there = marin.run([texts, tokenizer, tokens, rows], store=tmp_path / "other", backend="inline")
    assert [each.digest for each in made] == [each.digest for each in there]
    assert sum(len(list(read_documents(shard))) for shard in made[0].shards) == 40
    assert len(SequenceData(made[3].shards, 16)) == len(SequenceData(there[3].shards, 16)) > 0


@pytest.fixture
def corpus(root: str) -> str:
    folder = fs.join(root.rpartition("/")[0], f"corpus-{uuid.uuid4().hex}")
    for name in ("a.txt", "deep/b.txt", "deep/c.txt", "d.md"):
        fs.write(fs.join(folder, name), f"text of {name}".encode())
    return folder


def test_inputs_are_pinned_where_they_lie_and_only_what_changed_is_read_again(root: str, corpus: str):
    step = Files(url=f"{corpus}/**/*.txt", shard_bytes=1)
    documents = marin.run(step, store=root, backend="inline")
    assert [shard.value["files"] for shard in documents.shards] == [1, 1, 1]
    assert states(ran([step], root)) == {"files": "cached"}
    fs.write(fs.join(corpus, "deep/c.txt"), b"TEXT of deep/c.txt")  # of equal size
    edited = ran([step], root)
    assert edited.step("files").shards == {"total": 3, "reused": 2, "computed": 1}
    texts = [each.text for shard in marin.load(step, store=root).shards for each in read_documents(shard)]
    assert texts == ["text of a.txt", "text of deep/b.txt", "TEXT of deep/c.txt"]


class Meddling(Files):
    """Somebody edits the input while the step runs."""

    version = 1

    def run(self, ctx: Context) -> Documents:
        fs.write(ctx.inputs[-1].url, b"TEXT of deep/c.txt")
        return super().run(ctx)


def test_input_that_changes_between_plan_and_read_fails_the_attempt(root: str, corpus: str):
    with pytest.raises(StepError, match=r"input changed during the run: `deep/c\.txt`"):
        marin.run(Meddling(url=f"{corpus}/**/*.txt"), store=root, backend="inline")
    again = marin.run(Meddling(url=f"{corpus}/**/*.txt"), store=root, backend="inline")  # pinned as it is by now
    assert [each.text for shard in again.shards for each in read_documents(shard)][-1] == "TEXT of deep/c.txt"


class Careless(Step[Value[str]]):
    """Reads its input by hand, after somebody has edited it."""

    url: str

    def inputs(self) -> tuple[str, ...]:
        return (self.url,)

    def run(self, ctx: Context) -> Value[str]:
        fs.write(ctx.inputs[0].url, b"TEXT of a.txt")
        return Value.write(ctx.output, fs.read(ctx.inputs[0].url).decode())


def test_input_that_changes_under_a_step_that_does_not_look_fails_the_attempt(root: str, corpus: str):
    with pytest.raises(StepError, match=r"input changed during the run: `a\.txt`"):
        marin.run(Careless(url=f"{corpus}/a.txt"), store=root, backend="inline")


def test_pins_of_a_store_that_knows_versions_are_remembered_by_them(root: str, corpus: str, tmp_path: Path):
    memo, later = tmp_path / "memo.sqlite", time.time_ns() + 3_000_000_000
    first = pin([f"{corpus}/**/*.txt"], memo=memo, clock_ns=lambda: later)
    if root.startswith("memory://"):
        assert not memo.exists()  # it has no versions; reading it costs nothing
        return
    with contextlib.closing(sqlite3.connect(memo)) as database, database:
        database.execute("update digests set digest = 'remembered'")
    assert {file.digest for file in pin([f"{corpus}/**/*.txt"], memo=memo)} == {"remembered"}
    assert pin([f"{corpus}/a.txt"], memo=memo)[0].digest == "remembered"
    fs.write(fs.join(corpus, "a.txt"), b"TEXT of a.txt")
    edited = pin([f"{corpus}/a.txt"], memo=memo)[0]
    assert edited.digest not in ("remembered", first[0].digest)
    with pytest.raises(InputError, match="input changed during the run"):
        check_unchanged(first[:1], memo=memo)
