"""Stores to read from: what they have is a hit as if it lay here; they are never written to, and nothing here needs
them once something new was made.
"""

import json
import shutil
import uuid
from pathlib import Path

import pytest

import marin
from marin import Context, Documents, Files, Folder, Pick, Scores, Shard, Split, Step, Value, fs
from marin.base.errors import StepError, StoreError
from marin.cli.app import call
from marin.graph.artifact import Sharded
from marin.graph.files import FileRef
from marin.run import api
from marin.run.result import RunResult
from marin.store import Manifest, Store


class Squares(Step[Sharded]):
    n: int

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(f"{i:03d}", digest=f"number {i}") for i in range(self.n)]
        return Sharded.write(ctx.output, shards=ctx.map(square, shards).shards)


def square(shard: Shard, output) -> int:
    output.write("number.txt", shard.name.encode())
    return int(shard.name) ** 2


class Total(Step[Value[int]]):
    squares: Step[Sharded]
    offset: int = 0

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, self.offset + sum(shard.value for shard in ctx.load(self.squares).shards))


class Model(Step[Folder]):
    size: int

    def run(self, ctx: Context) -> Folder:
        ctx.output.write("weights/model.bin", b"w" * self.size)
        ctx.output.write("copy.bin", b"w" * self.size)
        return Folder.write(ctx.output)


class Quality(Step[Scores]):
    model: Step[Folder]

    def run(self, ctx: Context) -> Scores:
        return Scores.write(ctx.output, {"size": len(ctx.load(self.model).read("weights/model.bin"))})


class Outside(Step[Folder]):
    """Names a file of nobody's store."""

    url: str

    def run(self, ctx: Context) -> Folder:
        file = FileRef("x", self.url, 1, "0" * 64)
        return Folder(type(ctx.output.contents())(ctx.output.contents().reader, (file,)))


@pytest.fixture(params=["local", "memory"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "team") if request.param == "local" else f"memory://{uuid.uuid4().hex}/team"


@pytest.fixture
def own(tmp_path: Path) -> str:
    return str(tmp_path / "own")


def run(target, store: str, *read_from: str) -> RunResult:
    steps = target if isinstance(target, list) else [target]
    planned = api.plan(steps, store=store, read_from=read_from)
    return api.run_plan(planned, store=store, backend="inline", read_from=read_from)


def states(result: RunResult) -> dict[str, str]:
    return {step.name: step.state for step in result.steps}


def listing(store: str) -> list[tuple[str, int]]:
    return [(entry.path, entry.size) for entry in fs.list_files(store)]


def committed(result: RunResult, name: str, *read_from: str) -> tuple[Store, Manifest]:
    store = Store.open(result.store, write=False, read_from=read_from)
    step = result.step(name)
    return store, store.find([(step.step, str(step.fingerprint))])[str(step.fingerprint)]


def test_what_an_upstream_store_has_is_a_hit_that_copies_nothing(team: str, own: str):
    made = run(Total(squares=Squares(n=3)), team)
    before = listing(team)
    result = run(Total(squares=Squares(n=3)), own, team)
    assert states(result) == {"squares": "cached", "total": "cached"}
    assert [step.artifact for step in result.steps] == [step.artifact for step in made.steps]
    assert result.step("total").artifact.startswith(f"{team}/artifacts/")
    assert listing(team) == before
    assert {path.split("/")[0] for path, _ in listing(own)} == {"store.json", "runs"}


def test_artifacts_upstream_are_loaded_planned_and_returned(team: str, own: str):
    step = Total(squares=Squares(n=4))
    run(step, team)
    assert marin.load(step, store=own, read_from=[team]).value == 14
    assert marin.run(step, store=own, backend="inline", read_from=[team]).value == 14
    planned = marin.plan(step, store=own, read_from=[team])
    assert [each.produced.store for each in planned.steps] == [team, team]
    with pytest.raises(StoreError, match="no result of total yet"):
        marin.load(step, store=own)


def test_what_is_new_is_made_from_upstream_parents_and_stays_here(team: str, own: str):
    run(Squares(n=4), team)
    before = listing(team)
    result = run(Total(squares=Squares(n=4), offset=100), own, team)
    assert states(result) == {"squares": "cached", "total": "done"}
    assert listing(team) == before
    assert result.step("total").artifact.startswith(f"{own}/artifacts/")
    assert marin.load(Total(squares=Squares(n=4), offset=100), store=own, read_from=[team]).value == 114


def test_own_store_comes_first_then_the_others_in_order(tmp_path: Path, own: str):
    stores = [str(tmp_path / name) for name in ("one", "two")]
    for store in stores:
        run(Squares(n=2), store)
    assert run(Squares(n=2), own, *stores).steps[0].artifact.startswith(stores[0])
    assert run(Squares(n=2), own, *stores[::-1]).steps[0].artifact.startswith(stores[1])
    run(Squares(n=2), own)
    assert run(Squares(n=2), own, *stores).steps[0].artifact.startswith(own)


def test_upstream_answers_where_the_own_files_are_gone(tmp_path: Path, team: str, own: str):
    step = Model(size=10)
    run(step, team)
    made = run(step, own)
    shutil.rmtree(next(Path(made.steps[0].artifact).rglob("weights")))
    result = run(Quality(model=step), own, team)
    assert states(result) == {"model": "cached", "quality": "done"}
    assert result.step("model").artifact.startswith(team)
    assert states(run(step, own)) == {"model": "done"}


def test_hit_upstream_whose_files_are_gone_is_a_miss(tmp_path: Path, own: str):
    team = str(tmp_path / "team")
    made = run(Model(size=10), team)
    shutil.rmtree(next(Path(made.steps[0].artifact).rglob("weights")))
    assert states(run(Model(size=10), own, team)) == {"model": "done"}


def test_shards_upstream_are_reused_and_copied_for_a_new_artifact(team: str, own: str):
    run(Squares(n=5), team)
    before = listing(team)
    result = run(Squares(n=7), own, team)
    assert result.steps[0].shards == {"total": 7, "reused": 5, "computed": 2}
    assert listing(team) == before
    _, manifest = committed(result, "squares", team)
    assert (manifest.root, len(manifest.shards)) == (own, 7)
    assert [file.path for shard in manifest.shards for file in shard.files] == ["number.txt"] * 7
    assert all(file.url.startswith(("artifacts/", "shards/")) for file in manifest.all_files)
    fs.delete_folder(team)  # nothing here needs it any more
    alone = Store.open(own, write=False)
    contents = alone.contents(manifest)
    assert [contents.reader.read(shard.files[0]) for shard in contents.shards] == [b"%03d" % n for n in range(7)]
    assert run(Squares(n=7), str(own)).steps[0].digest == result.steps[0].digest


def test_same_bytes_have_the_same_digest_wherever_their_shards_came_from(tmp_path: Path, own: str):
    team, other = str(tmp_path / "team"), str(tmp_path / "other")
    run(Squares(n=5), team)
    mixed, whole = run(Squares(n=7), own, team), run(Squares(n=7), other)
    assert (mixed.steps[0].digest, mixed.steps[0].fingerprint) == (whole.steps[0].digest, whole.steps[0].fingerprint)


def test_pick_of_an_upstream_artifact_brings_its_files_here_once(team: str, own: str):
    models = [Model(size=10), Model(size=2000)]
    pick = Pick(among=models, by=[Quality(model=model) for model in models], metric="size", highest=True)
    run(models, team)
    before = listing(team)
    result = run(pick, own, team)
    assert states(result)["model-2"] == "cached"
    assert listing(team) == before
    _, manifest = committed(result, "pick")
    assert [file.path for file in manifest.files] == ["copy.bin", "weights/model.bin"]
    assert all("/copied/" in file.url for file in manifest.files)
    assert result.step("pick").digest == result.step("model-2").digest
    fs.delete_folder(team)
    assert len(Folder(Store.open(own, write=False).contents(manifest)).read("weights/model.bin")) == 2000


def test_documents_split_upstream_and_extended_here(tmp_path: Path, own: str):
    team, corpus = str(tmp_path / "team"), tmp_path / "corpus"
    corpus.mkdir()
    for number in range(6):
        (corpus / f"{number}.txt").write_text(f"document {number} " * 20)

    def sides() -> Split:
        documents: Step[Documents] = Files(url=f"{corpus}/*.txt", shard_bytes=1)
        return Split(documents=documents, keep="train", fraction=0.3)

    run(sides(), team)
    (corpus / "9.txt").write_text("one more")
    result = run(sides(), own, team)
    assert result.step("files").shards == {"total": 7, "reused": 6, "computed": 1}
    assert result.step("split").shards == {"total": 7, "reused": 6, "computed": 1}


def test_damaged_file_upstream_is_never_copied(tmp_path: Path, own: str):
    team = str(tmp_path / "team")
    run(Squares(n=2), team)
    damaged = next(Path(team).rglob("number.txt"))
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    result = run(Squares(n=3), own, team)
    assert result.state == "failed"
    assert "does not have the digest" in result.steps[0].error["message"]
    assert "--read-from" in result.steps[0].error["hint"]
    copies = [path.read_bytes() for path in Path(own).rglob("number.txt")]
    assert damaged.read_bytes() not in copies


def test_artifact_that_names_a_file_of_no_store_is_refused(tmp_path: Path, own: str):
    (tmp_path / "x").write_text("x")
    with pytest.raises(StepError, match="`x`, which lies outside of the store"):
        marin.run(Outside(url=str(tmp_path / "x")), store=own, backend="inline")


def test_store_to_read_from_that_is_none_is_named_at_once(tmp_path: Path, own: str):
    for url in (str(tmp_path / "nowhere"), f"memory://{uuid.uuid4().hex}/nowhere"):
        with pytest.raises(StoreError, match="no store to read from") as caught:
            marin.plan(Squares(n=1), store=own, read_from=[url])
        assert caught.value.where == url
    (tmp_path / "newer").mkdir()
    run(Squares(n=1), str(tmp_path / "newer"))
    (tmp_path / "newer" / "store.json").write_text("{}")
    with pytest.raises(StoreError, match="cannot be read"):
        marin.plan(Squares(n=1), store=own, read_from=[str(tmp_path / "newer")])
    assert not Path(own).exists()


def test_store_named_as_its_own_upstream_is_asked_once(own: str):
    run(Squares(n=2), own)
    assert Store.open(own, write=False, read_from=[f"{own}/", own]).upstreams == ()
    assert states(run(Squares(n=2), own, own)) == {"squares": "cached"}


def test_where_a_manifest_was_read_from_is_not_stored(team: str, own: str):
    result = run(Squares(n=1), team)
    store, manifest = committed(result, "squares")
    assert manifest.root == team
    assert "root" not in json.loads(manifest.encode())
    assert store.artifact_url(manifest) == result.steps[0].artifact


PIPELINE = """
from marin import Records, pipeline

@pipeline
def shared(text: str = "a"):
    return [Records(texts=[text])]
"""


def test_cli_reads_from_stores_and_says_which(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared_upstream.py").write_text(PIPELINE)
    assert call(["run", "shared_upstream.py", "--backend", "inline", "--store", "team"]) == 0
    team = str(tmp_path / "team")
    options = ["shared_upstream.py", "--store", "own", "--read-from", "team"]
    capfd.readouterr()
    assert call(["plan", *options, "--json", "--check"]) == 0
    step = json.loads(capfd.readouterr().out)["steps"][0]
    assert step["artifact"].startswith(f"{team}/artifacts/records/")
    assert call(["plan", *options]) == 0
    assert f"in {team}" in capfd.readouterr().out
    assert call(["why", *options[:1], "records", *options[1:]]) == 0
    assert f"it lies in {team}" in capfd.readouterr().out
    assert call(["run", *options, "--json", "--backend", "inline"]) == 0
    assert json.loads(capfd.readouterr().out)["steps"][0]["state"] == "cached"
    assert call(["run", *options, "--text", "b", "--backend", "inline"]) == 0
    assert "marin plan shared_upstream.py --text b --store own --read-from team" in capfd.readouterr().err
    assert call(["plan", *options[:-1], "nowhere"]) == 3
    assert "no store to read from" in capfd.readouterr().err
