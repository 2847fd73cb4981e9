"""Stores that were damaged: every record torn, emptied, flipped, foreign or gone is a miss or a named error.

One small store is made once; each test damages a copy of it, looks at it through the command line, and runs the
pipeline again. Whatever was damaged, the run ends in the same digests, and the run after it has nothing to do.
"""

import importlib
import json
import logging
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from marin.base.errors import StoreError
from marin.cli.app import call
from marin.run import api
from marin.run.result import RunResult
from marin.store import Holder, Lease, Leases, Manifest, Store, manifest, records
from marin.store.process import this_process

PIPELINE = '''"""Squares numbers and adds them up."""

from marin import Context, Folder, Shard, Step, Value, pipeline
from marin.graph.artifact import Sharded


def square(shard: Shard, output) -> int:
    output.write("square.txt", str(shard.value**2).encode())
    return shard.value**2


class Squares(Step[Sharded]):
    n: int

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(f"{number:04d}", f"number {number}", (), number) for number in range(self.n)]
        return Sharded.write(ctx.output, shards=ctx.map(square, shards).shards)


class Total(Step[Value[int]]):
    squares: Step[Sharded]

    def run(self, ctx: Context) -> Value[int]:
        total = sum(shard.value for shard in ctx.load(self.squares).shards)
        print(f"the sum is {total}")
        ctx.metric(total=total)
        return Value.write(ctx.output, total)


@pipeline
def adding(n: int = 3):
    """Square, add."""
    return [Total(squares=Squares(n=n))]
'''

KINDS = {
    "manifest": r"artifacts/[^/]+/[^/]+/manifest\.json",
    "recipe": r"artifacts/[^/]+/[^/]+/recipe\.json",
    "lease": r"artifacts/.*/leases/\d+\.json",
    "released": r"artifacts/.*/leases/\d+\.released\.json",
    "result": r"artifacts/.*/result\.json",
    "log": r"artifacts/.*/log\.txt",
    "shard": r"shards/.*/manifest\.json",
    "run": r"runs/[^/]+/run\.json",
    "heartbeat": r"runs/[^/]+/heartbeat\.json",
    "events": r"runs/[^/]+/events/.*\.jsonl",
    "code": r"code/.*",
}
EVERYTHING = "|".join(KINDS.values())


class Made(NamedTuple):
    """The store that all tests copy, and what it holds."""

    module: ModuleType
    folder: Path
    digests: dict[str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    project = tmp_path_factory.mktemp("damaged")
    (project / "adding_up.py").write_text(PIPELINE)
    sys.path.insert(0, str(project))
    module = importlib.import_module("adding_up")
    result = ran(module, project / "store")
    yield Made(module, project / "store", {step.name: str(step.digest) for step in result.steps})
    sys.path.remove(str(project))
    sys.modules.pop("adding_up")


@pytest.fixture
def store(made: Made, tmp_path: Path) -> Path:
    return shutil.copytree(made.folder, tmp_path / "store")


def ran(module: ModuleType, store: Path, n: int = 3) -> RunResult:
    return api.run_plan(api.plan(module.adding(n=n), store=store), store=store, backend="inline")


def states(module: ModuleType, store: Path, n: int = 3) -> dict[str, str]:
    return {step.name: step.state for step in api.plan(module.adding(n=n), store=store).steps}


def stored(store: Path, pattern: str) -> list[Path]:
    """Return the records that match, sorted; at least one."""
    files = (path for path in sorted(store.rglob("*")) if path.is_file())
    found = [path for path in files if re.fullmatch(pattern, str(path.relative_to(store)))]
    assert found, pattern
    return found


VERBS = (("status", "--json"), ("ls", "--json"), ("show", "total", "--json"), ("plan", "adding_up.py", "--json"))
SCREENS = (("status",), ("ls",), ("show", "total"), ("logs",))


def looked_at(
    store: Path,
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verbs: tuple[tuple[str, ...], ...] = (*VERBS, *SCREENS),
) -> dict[str, int]:
    """Look at a store through the command line; return the exit codes. No verb may end in an error of marin's own."""
    monkeypatch.chdir(made.folder.parent)
    codes = {}
    for verb in verbs:
        codes[" ".join(verb)] = call([*verb, "--store", str(store)])
        out, err = capsys.readouterr()
        assert "fault of marin" not in err, (verb, err)
        assert "--traceback shows" not in err, (verb, err)
        if "--json" in verb:
            assert json.loads(out)["schema"] == 1
        if codes[" ".join(verb)] != 0:
            assert "error:" in err
            assert "hint:" in err
    return codes


def heals(store: Path, made: Made) -> None:
    """Run again: the digests are the same, and after that there is nothing to do."""
    result = ran(made.module, store)
    assert {step.name: step.digest for step in result.steps} == made.digests
    assert set(states(made.module, store).values()) == {"cached"}
    total = api.load(made.module.adding()[0], store=store)
    assert total.value == 5


def flipped(data: bytes) -> bytes:
    where = len(data) // 3
    return data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :] if data else b"\x00"


def newer(data: bytes) -> bytes:
    """Return the record as a later marin could write it, or JSON that is no record with a high schema."""
    try:
        record = json.loads(data)
    except ValueError:
        record = {}
    record = record if isinstance(record, dict) else {}
    kind = record.get("kind", "unknown")
    plain = {**record, "schema": records.SCHEMA + 1, "kind": kind}
    encoded = records.encode(str(kind), {key: value for key, value in record.items() if key != "checksum"})
    return encoded.replace(f'"schema": {records.SCHEMA}'.encode(), f'"schema": {plain["schema"]}'.encode())


DAMAGE: dict[str, Callable[[bytes], bytes] | None] = {
    "torn": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": flipped,
    "another kind": lambda data: records.encode("claim", {"by": "ada", "nonce": "1"}),
    "newer schema": newer,
    "deleted": None,
    "no object": lambda data: b"[1, 2]",
    "null": lambda data: b"null",
    "text": lambda data: b'"x"',
    "no text": lambda data: bytes(range(256)),
    "a long number": lambda data: b'{"a": ' + b"9" * 5000 + b"}",
    "a bomb of lists": lambda data: b"[" * 200_000,
    "a bomb of objects": lambda data: b'{"a":' * 200_000,
}


def damage(store: Path, pattern: str, how: Callable[[bytes], bytes] | None) -> None:
    for path in stored(store, pattern):
        if how is None:
            path.unlink()
        else:
            path.write_bytes(how(path.read_bytes()))


@pytest.mark.parametrize("how", DAMAGE)
def test_all_records_damaged_at_once_are_misses_and_the_store_heals(
    store: Path, made: Made, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    damage(store, EVERYTHING, DAMAGE[how])
    looked_at(store, made, monkeypatch, capsys)
    heals(store, made)


QUICK = ("torn", "flipped", "another kind", "newer schema", "deleted")


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in DAMAGE])
@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_of_record_damaged_is_a_miss_and_the_store_heals(
    store: Path, made: Made, kind: str, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    damage(store, KINDS[kind], DAMAGE[how])
    codes = looked_at(store, made, monkeypatch, capsys, VERBS)
    assert codes["plan adding_up.py --json"] == 0
    heals(store, made)


@pytest.mark.parametrize("kind", ["manifest", "shard"])
def test_damaged_commit_record_is_named_in_a_warning(
    store: Path, made: Made, kind: str, caplog: pytest.LogCaptureFixture
):
    # A shard is asked for only when its step runs.
    damage(store, KINDS["manifest"], DAMAGE["torn"] if kind == "manifest" else None)
    damage(store, KINDS["shard"], DAMAGE["torn"])
    with caplog.at_level(logging.WARNING):
        ran(made.module, store)
    assert re.search(rf"{KINDS[kind]} is no JSON; it is passed over", caplog.text)


HEAD = ("schema", "kind", "checksum")


def wrong(value: object) -> object:
    """Return something of another type."""
    return {"a": 1} if isinstance(value, list | str) or value is None else ["x"]


def rewritten(data: bytes, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    """Return a record with other fields and a checksum that fits."""
    record = json.loads(data)
    plain = {key: value for key, value in record.items() if key not in HEAD}
    return records.encode(record["kind"], change(plain))


def paths_in(value: Any, depth: int = 4) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of each member of a record, nested ones too; of a list, the first stands for all."""
    if isinstance(value, dict) and depth:
        members: list[tuple[str | int, Any]] = list(value.items())
    else:
        members = list(enumerate(value[:1])) if isinstance(value, list) and depth else []
    for key, member in members:
        yield (key,)
        yield from ((key, *rest) for rest in paths_in(member, depth - 1))


def replaced(value: Any, place: tuple[str | int, ...], change: Callable[[Any], Any]) -> Any:
    """Return a record in which one member is changed."""
    if not place:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replaced(copy[place[0]], place[1:], change)
    return copy


@pytest.mark.parametrize("kind", ["manifest", "recipe", "shard", "run", "heartbeat", "lease"])
def test_record_that_holds_something_else_in_a_field_never_crashes_a_screen_or_a_plan(
    made: Made, store: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    whole = {path: path.read_bytes() for path in stored(store, KINDS[kind])}
    places = {place for data in whole.values() for place in paths_in(json.loads(data)) if place[0] not in HEAD}
    assert places
    crashes = []
    for place in sorted(places, key=str):
        for path, data in whole.items():
            has = place in paths_in(json.loads(data))
            changed = rewritten(data, lambda record, at=place: replaced(record, at, wrong)) if has else data
            path.write_bytes(changed)
        try:
            looked_at(store, made, monkeypatch, capsys)
        except AssertionError as error:
            crashes.append(f"{'.'.join(map(str, place))}: {str(error).partition('assert')[0]}")
    assert not crashes, "\n".join(crashes)
    heals(store, made)


def test_events_with_any_bit_flipped_never_crash_a_screen(
    made: Made, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    whole = {path: path.read_bytes() for path in stored(store, KINDS["events"])}
    chance = random.Random(7)
    for _ in range(40):
        for path, data in whole.items():
            flipped = bytearray(data)
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
        looked_at(store, made, monkeypatch, capsys, (("status", "--json"), ("status",), ("logs",)))


FOREIGN_EVENTS = [
    {
        "kind": "state",
        "step": "../../etc",
        "name": "total",
        "fingerprint": "x",
        "attempt": "../../../..",
        "state": "done",
    },
    {"kind": "shards", "name": "squares", "step": "squares", "total": 1e400, "reused": "x", "computed": None},
    {"kind": "metric", "name": "total", "step": "total", "values": [1]},
    {"kind": "metric", "name": "total", "step": "total", "values": {"loss": {"a": 1}}},
    {"kind": "progress", "name": "total", "step": "total", "done": "x", "total": [], "unit": 3},
    {"kind": 7, "name": ["total"], "time": {}},
]


@pytest.mark.parametrize("event", FOREIGN_EVENTS, ids=lambda event: str(event["kind"]))
def test_events_of_a_foreign_hand_never_crash_a_screen(
    made: Made, store: Path, event: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with stored(store, KINDS["events"])[0].open("a") as file:
        file.write(json.dumps(event) + "\n")
    codes = looked_at(store, made, monkeypatch, capsys, (("status", "--json"), ("status",), ("logs",)))
    assert set(codes.values()) == {0}


@pytest.mark.parametrize("how", [how for how in DAMAGE if how not in ("newer schema", "deleted")])
def test_store_json_damaged_is_an_error_that_says_it_may_be_deleted(
    made: Made, store: Path, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    record = store / "store.json"
    damage(store, r"store\.json", DAMAGE[how])
    codes = looked_at(store, made, monkeypatch, capsys)
    assert set(codes.values()) == {3}
    with pytest.raises(StoreError, match=r"store\.json cannot be read") as caught:
        ran(made.module, store)
    assert "delete store.json, which is safe" in caught.value.hint
    record.unlink()
    assert {step.state for step in ran(made.module, store).steps} == {"cached"}
    assert record.exists()


@pytest.mark.parametrize("change", [newer, lambda data: rewritten(data, lambda record: {"format": 99})])
def test_store_json_of_a_newer_marin_asks_for_an_upgrade_and_not_for_a_deletion(
    made: Made, store: Path, change: Callable[[bytes], bytes]
):
    damage(store, r"store\.json", change)
    with pytest.raises(StoreError) as caught:
        ran(made.module, store)
    assert "upgrade marin" in caught.value.hint
    assert "delete" not in caught.value.hint


def test_records_of_other_results_are_misses(made: Made, store: Path):
    ran(made.module, store, n=4)
    for kind in ("manifest", "recipe", "lease", "released", "shard"):
        by_step: dict[str, list[Path]] = {}
        for path in stored(store, KINDS[kind]):
            step = path.relative_to(store).parts[1] if kind != "shard" else ""
            by_step.setdefault(step, []).append(path)
        for paths in by_step.values():
            data = [path.read_bytes() for path in paths]
            assert len(set(data)) > 1
            for path, other in zip(paths, data[1:] + data[:1], strict=True):
                path.write_bytes(other)
    assert states(made.module, store) == {"squares": "run", "total": "unknown"}
    heals(store, made)
    assert {step.state for step in ran(made.module, store, n=4).steps} == {"done"}
    assert api.load(made.module.adding(n=4)[0], store=store).value == 14


def test_records_of_other_steps_are_misses(made: Made, store: Path):
    first, second = stored(store, KINDS["manifest"])
    first_data, second_data = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_data)
    second.write_bytes(first_data)
    assert states(made.module, store) == {"squares": "run", "total": "unknown"}
    heals(store, made)


def test_records_of_another_store_are_believed_only_where_they_belong(made: Made, store: Path, tmp_path: Path):
    # The same fingerprints with other attempts: the manifest names files that are not here.
    ran(made.module, tmp_path / "other")
    for kind in ("manifest", "shard"):
        there = stored(tmp_path / "other", KINDS[kind])
        for mine, other in zip(stored(store, KINDS[kind]), there, strict=True):
            assert mine.relative_to(store) == other.relative_to(tmp_path / "other")
            mine.write_bytes(other.read_bytes())
    assert states(made.module, store) == {"squares": "run", "total": "unknown"}
    heals(store, made)


def test_files_of_another_result_are_named_and_never_read(made: Made, store: Path):
    squares = sorted((store / "shards").rglob("square.txt"))
    squares[0].write_bytes(squares[1].read_bytes())  # of equal size, so that only the digest tells
    contents = api.load(made.module.Squares(n=3), store=store).contents
    files = {file.url: file for file in (shard.file("square.txt") for shard in contents.shards)}
    with pytest.raises(StoreError, match="does not have the digest that was recorded") as caught:
        contents.reader.read(files.pop(str(squares[0])))
    assert caught.value.where == str(squares[0])
    assert {contents.reader.read(file) for file in files.values()} < {b"0", b"1", b"4"}


CLIMBING = ("/etc/passwd", "../outside.txt", "a/../../../outside.txt", "s3://other/x", "file:///etc/passwd", "", "x\0y")


@pytest.mark.parametrize("path", CLIMBING)
@pytest.mark.parametrize("field", ["path", "url"])
@pytest.mark.parametrize("kind", ["manifest", "shard"])
def test_path_that_leaves_the_store_is_a_miss_and_nothing_is_written_there(
    made: Made, store: Path, tmp_path: Path, kind: str, field: str, path: str
):
    (tmp_path / "outside.txt").write_bytes(b"4")
    if kind == "shard":
        damage(store, KINDS["manifest"], None)
        place: tuple[str | int, ...] = ("shard", "files", 0, field)
        damage(store, KINDS["shard"], lambda data: rewritten(data, lambda each: replaced(each, place, lambda _: path)))
    else:
        total = stored(store, r"artifacts/total/.*/manifest\.json")[0]
        place = ("files", 0, field)
        total.write_bytes(rewritten(total.read_bytes(), lambda each: replaced(each, place, lambda _: path)))
        assert states(made.module, store)["total"] == "run"
    published = api.run(made.module.adding()[0].at(str(tmp_path / "published")), store=store, backend="inline")
    assert published.value == 5
    assert (tmp_path / "outside.txt").read_bytes() == b"4"
    assert {each.name for each in tmp_path.iterdir()} == {"store", "published", "outside.txt"}
    heals(store, made)


def test_two_results_with_one_prefix_end_in_a_named_error_and_the_first_stays(made: Made, store: Path):
    record = stored(store, r"artifacts/total/.*/manifest\.json")[0]
    other = manifest.decode(record.read_bytes(), where=str(record))
    assert isinstance(other, Manifest)
    stranger = other.fingerprint[:16] + other.fingerprint[:15:-1]
    assert stranger != other.fingerprint
    data = rewritten(record.read_bytes(), lambda each: {**each, "fingerprint": stranger})
    record.write_bytes(data)
    assert states(made.module, store) == {"squares": "cached", "total": "run"}
    result = ran(made.module, store)
    assert result.state == "failed"
    error = result.step("total").error
    assert error is not None
    assert "another result has the same first 16 digits" in str(error["message"])
    assert "--store" in str(error["hint"])
    assert record.read_bytes() == data


def held(store: Path, made: Made, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Lease | Holder:
    """Ask for the lease of a result that a living run holds, after its record was changed."""
    opened = Store.open(str(store), write=True)
    fingerprint = str(ran(made.module, store).step("total").fingerprint)
    holding = Leases(opened, "run-1", user="ada").acquire("total", fingerprint)
    assert isinstance(holding, Lease)
    record = Path(holding.url)
    record.write_bytes(rewritten(record.read_bytes(), change))
    return Leases(opened, "run-2").acquire("total", fingerprint)


def test_lease_of_a_living_run_holds_and_one_of_another_result_does_not(made: Made, store: Path):
    assert isinstance(held(store, made, lambda record: record), Holder)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: {**record, "fingerprint": "ab" * 32},
        lambda record: {**record, "process": {**this_process(), "pid": "x", "started": []}, "run": ["x"]},
        lambda record: {key: value for key, value in record.items() if key != "run"},
    ],
    ids=["of another result", "of other types", "without its run"],
)
def test_lease_that_cannot_be_believed_does_not_block(
    made: Made, store: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
):
    assert isinstance(held(store, made, change), Lease)
