"""`marin gc` beside runs, readers, pins and other collectors: whoever comes in between loses nothing."""

import dataclasses
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from marin import Context, Folder, Shard, Step, Value, fs
from marin.base.errors import ConfigurationError, StepError, StoreError
from marin.base.json import dumps
from marin.graph.artifact import Sharded
from marin.graph.files import Output
from marin.run import api
from marin.run.backends.inline import InlineBackend
from marin.store import Heartbeat, Holder, Lease, Leases, Store, layout, unlisted
from marin.store.former_results import invalidate, invalidated, undo
from marin.store.gc.collect import Collected, collect, survey
from marin.store.gc.verdict import policy_of
from marin.store.pins import pin, pins, unpin

DAY = 86_400.0


class Number(Step[Value[int]]):
    n: int

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, self.n)


class Doubled(Step[Value[int]]):
    number: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, 2 * ctx.load(self.number).value)


def square(shard: Shard, output: Output) -> int:
    output.write("square", str(shard.value).encode())
    return int(shard.value) ** 2


class Squares(Step[Sharded]):
    n: int
    fails: bool = False

    def run(self, ctx: Context) -> Sharded:
        mapped = ctx.map(square, [Shard(str(i), f"{i:064x}", (), i) for i in range(self.n)])
        if self.fails:
            raise ValueError("no luck")
        return Sharded.write(ctx.output, shards=mapped.shards)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def made(root: str, *steps: Step[Any]) -> Store:
    api.run(list(steps), store=root, backend="inline")
    return Store.open(root, write=True)


def age(root: str, days: float, below: str = "") -> None:
    for path in Path(root, below).rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - days * DAY,) * 2)


def gc(root: str, days: float = 7.0, grace: float = DAY, **options: Any) -> Collected:
    return collect(Store(root), lambda now: policy_of(now, days=days, grace=grace), **options)


def steps_in(store: Store) -> set[str]:
    return {each.step for each in store.manifests()}


def live_run(store: Store, run: str, touched: list[tuple[str, str]]) -> Heartbeat:
    """Begin a run of this process that says it was given these results."""
    record = {"run": run, "state": "running", "steps": [], "store": store.url, "user": "ada", "host": "here", "pid": 1}
    store.write_run(run, {**record, "started": "2026-01-01T00:00:00+00:00"})
    lines = [dumps({"kind": "state", "state": "cached", "step": step, "fingerprint": key}) for step, key in touched]
    fs.replace(fs.join(layout.run_folder(store.url, run), "events", "driver-000001.jsonl"), "\n".join(lines).encode())
    heartbeat = Heartbeat(store, run, interval=1000)
    heartbeat.start()
    return heartbeat


def end_run(store: Store, run: str) -> None:
    store.write_run(run, {**(store.read_run(run) or {}), "state": "done"})


def test_gc_what_a_live_run_was_given_stays_with_its_parents(root: str):
    store = made(root, Doubled(number=Number(n=1)), Squares(n=2))
    (doubled,) = store.manifests("doubled")
    age(root, 30)
    live_run(store, "run-1", [("doubled", doubled.fingerprint)]).stop()
    done = gc(root, days=0, grace=0)
    assert steps_in(store) == {"doubled", "number"}
    assert done.verdict.kept["of a live run"] == 2  # the result and the run itself
    end_run(store, "run-1")
    gc(root, days=0, grace=0)
    assert steps_in(store) == set()


def test_gc_deletes_nothing_that_a_live_run_may_have_met_without_saying_so_yet(root: str):
    store = made(root, Squares(n=2))
    (committed,) = store.manifests()
    age(root, 30)
    live_run(store, "run-1", []).stop()
    assert gc(root, days=0, grace=0).unlisted == 3
    gc(root, days=0, grace=0)
    assert store.present(committed)
    end_run(store, "run-1")
    gc(root, days=0, grace=0)
    assert not store.present(committed)


def test_gc_times_are_the_stores_and_a_clock_that_is_wrong_deletes_nothing(root: str, monkeypatch: pytest.MonkeyPatch):
    store = made(root, Number(n=1))
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert gc(root).unlisted == 0
    assert steps_in(store) == {"number"}


def test_recall_lists_again_for_all_who_ask_at_once(root: str):
    store = made(root, Squares(n=3))
    (committed,) = store.manifests()
    key = (committed.step, committed.fingerprint)
    age(root, 30)
    gc(root)
    assert store.find([key]) == {}
    barrier = threading.Barrier(8)

    def ask(_: int) -> object:
        barrier.wait()
        return store.recall([key]).get(key[1])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [committed] * 8
    assert store.find([key]) == {key[1]: committed}
    assert unlisted.unlisted_results(root) == []
    assert not list(Path(root, "unlisted").rglob("*.claim"))


def test_recall_and_deletion_are_decided_by_one_claim(root: str):
    store = made(root, Number(n=1))
    (committed,) = store.manifests()
    key = (committed.step, committed.fingerprint)
    age(root, 30)
    gc(root)
    (record,) = unlisted.unlisted_results(root)
    claim = record.url.removesuffix(".json") + ".claim"
    fs.create(claim, unlisted.records.encode("claim", {"by": unlisted.READER, "nonce": "0"}))
    assert not unlisted.forget(record)  # a reader is at it
    assert unlisted.recall(root, *key, pause=lambda seconds: fs.delete(record.url)) is None  # and another waits for it
    fs.delete(claim)
    fs.replace(record.url, record.data)
    assert unlisted.forget(record)
    assert unlisted.recall(root, *key) is None
    assert not list(Path(root, "unlisted").rglob("*.*"))


def test_forget_of_a_record_that_was_written_again_does_nothing(root: str):
    store = made(root, Number(n=1))
    (committed,) = store.manifests()
    text = fs.read(fs.join(store.artifact_url(committed), "manifest.json"))
    unlisted.unlist(root, committed, text)
    (record,) = unlisted.unlisted_results(root)
    store.recall([record.key])
    unlisted.unlist(root, committed, text)
    assert not unlisted.forget(record)
    assert store.recall([record.key]) == {committed.fingerprint: committed}


class Collecting(InlineBackend):
    """Has `act` done once the run has looked up its hits, and before any step runs."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def start(self, *arguments: Any) -> None:
        self._act()


def test_run_whose_parent_was_unlisted_after_the_hit_goes_on(root: str):
    store = made(root, Number(n=4))
    (number,) = store.manifests()

    def take_away() -> None:
        unlisted.unlist(root, number, fs.read(fs.join(store.artifact_url(number), "manifest.json")))
        assert store.manifests() == []

    planned = api.plan(Doubled(number=Number(n=4)), store=root)
    result = api.run_plan(planned, store=root, backend=Collecting(take_away))
    assert [step.state for step in result.steps] == ["cached", "done"]
    assert steps_in(store) == {"number", "doubled"}


def test_run_that_would_make_what_was_unlisted_takes_it_back(root: str):
    store = made(root, Doubled(number=Number(n=4)))
    before = {each.fingerprint: each for each in store.manifests()}
    age(root, 30)
    gc(root)
    result = api.run_plan(api.plan(Doubled(number=Number(n=4)), store=root), store=root, backend="inline")
    assert [step.state for step in result.steps] == ["cached", "cached"]
    assert {each.fingerprint: each for each in store.manifests()} == before


def test_gc_shards_that_a_failed_run_took_from_the_cache_stay_for_its_next_try(root: str):
    made(root, Squares(n=3))
    age(root, 30)
    with pytest.raises(StepError, match="no luck"):
        api.run(Squares(n=5, fails=True), store=root, backend="inline")
    gc(root)
    gc(root)
    assert len(list(Path(root, "shards").glob("*/*/manifest.json"))) == 5
    age(root, 8)
    gc(root)
    age(root, 2, "unlisted")
    gc(root)
    assert not list(Path(root, "shards").glob("*/*/*"))


def on(what: str, act: Callable[[], object]) -> Callable[[str, int, int], None]:
    """Return a progress callback that acts once, when a collector is at that point."""
    left = [act]

    def progress(now: str, done: int, total: int) -> None:
        if now == what and left:
            left.pop()()

    return progress


def test_gc_result_that_is_pinned_while_it_is_unlisted_is_listed_again(root: str):
    store = made(root, Number(n=1), Squares(n=2))
    (number,) = store.manifests("number")
    age(root, 30)
    act = on("unlisting results", lambda: pin(root, number, name=None, user="ada", reason=None))
    gc(root, progress=act)
    assert steps_in(store) == {"number"}
    age(root, 2, "unlisted")
    gc(root)
    assert steps_in(store) == {"number"}
    assert store.present(number)


def test_gc_result_that_is_wanted_while_it_is_given_up_keeps_its_files_and_its_shards(root: str):
    store = made(root, Number(n=1), Squares(n=2))
    (squares,) = store.manifests("squares")
    age(root, 30)
    gc(root)
    age(root, 2, "unlisted")
    made(root, Number(n=2))
    age(root, 30, "artifacts")
    age(root, 30, "runs")
    act = on("unlisting results", lambda: store.recall([(squares.step, squares.fingerprint)]))
    gc(root, progress=act)
    assert steps_in(store) == {"squares"}
    assert store.present(squares)
    assert (
        survey(Store(root), policy_of(time.time(), days=0, grace=0)).kept["unlisted, waits for its grace period"] == 0
    )


def test_gc_result_whose_invalidation_is_undone_meanwhile_keeps_its_files(root: str):
    store = made(root, Number(n=1), Squares(n=2))
    (number,) = store.manifests("number")
    assert invalidate(root, number, user="ada", reason="a test")
    age(root, 30)
    gc(root, progress=on("unlisting results", lambda: undo(root, invalidated(root)[0])))
    assert steps_in(store) == {"number"}
    assert store.present(number)


def test_gc_checkpoints_of_a_fingerprint_that_somebody_works_on_again_stay(root: str):
    store = made(root, Squares(n=2))
    checkpoint = fs.join(store.checkpoints_folder("train", "ab" * 32), "step-1", "MANIFEST.json")
    fs.write(checkpoint, b"{}")
    age(root, 30)
    taken: list[Lease | Holder] = []
    leases = Leases(store, "run-2")
    gc(root, progress=on("unlisting results", lambda: taken.append(leases.acquire("train", "ab" * 32))))
    assert fs.exists(checkpoint)
    assert isinstance(taken[0], Lease)
    other = Leases(store, "run-3").acquire("train", "ab" * 32)
    assert isinstance(other, Holder)  # the collector has not taken it over
    leases.release(taken[0])
    age(root, 30)
    gc(root)
    assert not fs.exists(checkpoint)


def test_gc_takes_halves_that_killed_writers_left_once_they_are_old(root: str):
    store = made(root, Number(n=1))
    folder = Path(store.artifact_url(store.manifests()[0]))
    places = [folder, folder / "leases", Path(root), Path(root, "pins"), Path(root, "runs")]
    for place in places:
        place.mkdir(exist_ok=True)
        (place / ".x.json.0123456789ab.partial").write_bytes(b"half")
    (Path(root) / ".probe-0123456789ab").write_bytes(b"first")
    gc(root, days=0, grace=0)
    assert len(list(Path(root).rglob(".*"))) == 6  # too young, whatever was asked for
    age(root, 1)
    assert gc(root, days=0.5).deleted >= 6
    assert not list(Path(root).rglob(".*"))


def test_gc_one_collector_at_a_time(root: str):
    store = made(root, Number(n=1))
    seen: list[str] = []

    def second() -> None:
        waited: list[float] = []
        with pytest.raises(StoreError, match="another `marin gc`"):
            gc(root, pause=waited.append)
        assert sum(waited) > 90  # as long as any waiter for a lease
        seen.append("refused")

    age(root, 30)
    gc(root, progress=on("unlisting results", second))
    assert seen == ["refused"]
    assert steps_in(store) == set()
    assert not Path(root, "gc").exists()


def test_gc_in_memory_goes_the_whole_way():
    root = f"memory://{uuid.uuid4().hex}/store"
    store = made(root, Doubled(number=Number(n=3)), Squares(n=2))
    (doubled,) = store.manifests("doubled")
    pin(root, doubled, name="mine", user="ada", reason=None)
    for _ in range(2):
        gc(root, days=0, grace=0)
    assert steps_in(store) == {"doubled", "number"}
    assert all(store.present(each) for each in store.manifests())
    unpin(root, "mine")
    for _ in range(2):
        gc(root, days=0, grace=0)
    left = {file.path.split("/")[0] for file in fs.list_files(root)}
    assert left - {"code", "locks"} == {"store.json"}


def test_gc_files_of_a_shard_whose_record_is_gone_live_as_long_as_the_result(root: str):
    store = made(root, Squares(n=2))
    (squares,) = store.manifests()
    for record in Path(root, "shards").glob("*/*/manifest.json"):
        record.unlink()
    pin(root, squares, name="mine", user="ada", reason=None)
    age(root, 30)
    gc(root)
    assert store.present(squares)
    log = fs.join(store.attempt_folder(squares.step, squares.fingerprint, squares.attempt), "log.txt")
    assert fs.exists(log)  # the attempt has no file that the result names
    unpin(root, "mine")
    gc(root)
    gc(root)
    assert store.recall([(squares.step, squares.fingerprint)]) == {squares.fingerprint: squares}
    assert store.present(squares)


def test_gc_shards_of_a_result_that_was_taken_back_can_be_reused_again(root: str):
    made(root, Squares(n=2))
    age(root, 30)
    gc(root)
    made(root, Squares(n=2))
    assert not list(Path(root, "shards").glob("*/*/manifest.json"))
    assert gc(root).relisted == 2
    assert len(list(Path(root, "shards").glob("*/*/manifest.json"))) == 2
    age(root, 2, "unlisted")
    gc(root)
    assert not Path(root, "unlisted").exists()
    result = api.run_plan(api.plan(Squares(n=3), store=root), store=root, backend="inline")
    assert result.steps[0].shards == {"total": 3, "reused": 2, "computed": 1}


def test_gc_attempt_that_a_live_run_writes_stays_however_long_ago_it_wrote(root: str):
    store = made(root, Number(n=1))
    name = f"run-1-{'ab' * 4}-1"
    partial = fs.join(store.attempt_folder("train", "ab" * 32, name), "output", "part")
    fs.write(partial, b"half of it")
    age(root, 30)
    live_run(store, "run-1", []).stop()
    gc(root, days=0, grace=0)
    assert fs.exists(partial)
    end_run(store, "run-1")
    gc(root, days=0, grace=0)
    assert not fs.exists(partial)


def test_gc_result_that_was_made_anew_leaves_the_old_one_to_the_run_that_was_given_it(root: str):
    store = made(root, Number(n=1))
    (old,) = store.manifests()
    unlisted.unlist(root, old, fs.read(fs.join(store.artifact_url(old), "manifest.json")))
    output = store.attempt_output(old.step, old.fingerprint, f"run-2-{old.fingerprint[:8]}-1")
    file = dataclasses.replace(output.write("value.json", b"1"), url="")
    new = dataclasses.replace(old, attempt=f"run-2-{old.fingerprint[:8]}-1", run="run-2", digest="0" * 64)
    path = f"{layout.relative(root, output.url)}/value.json"
    store.commit(dataclasses.replace(new, files=(dataclasses.replace(file, url=path),)))
    age(root, 30)
    live_run(store, "run-1", [(old.step, old.fingerprint)]).stop()
    for _ in range(3):
        gc(root)
    assert store.present(old)
    end_run(store, "run-1")
    age(root, 30)
    gc(root)
    assert not store.present(old)


def test_gc_result_that_is_pinned_just_before_it_goes_is_listed_again(root: str, monkeypatch: pytest.MonkeyPatch):
    store = made(root, Number(n=1))
    (number,) = store.manifests()
    age(root, 30)
    replace = fs.replace

    def first_pinned(url: str, data: bytes) -> None:
        if "/unlisted/" in url and not pins(root):
            pin(root, number, name="mine", user="ada", reason=None)
        replace(url, data)

    monkeypatch.setattr(fs, "replace", first_pinned)
    assert gc(root).relisted == 1
    assert store.manifests() == [number]


def test_gc_result_whose_manifest_is_put_back_by_hand_keeps_its_files(root: str):
    store = made(root, Number(n=1), Squares(n=2))
    (number,) = store.manifests("number")
    url = fs.join(store.artifact_url(number), "manifest.json")
    data = fs.read(url)
    fs.delete(url)
    age(root, 30)
    gc(root, progress=on("unlisting results", lambda: fs.create(url, data)))
    assert store.present(number)


def test_gc_sweeps_up_after_a_reader_that_was_killed_while_it_listed_again(root: str, monkeypatch: pytest.MonkeyPatch):
    store = made(root, Number(n=1))
    (number,) = store.manifests()
    pin(root, number, name="mine", user="ada", reason=None)
    unlisted.unlist(root, number, fs.read(fs.join(store.artifact_url(number), "manifest.json")))

    def dying(url: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fs, "delete_unchanged", dying)
        with pytest.raises(KeyboardInterrupt):
            store.recall([(number.step, number.fingerprint)])
    assert len(list(Path(root, "unlisted").rglob("*.*"))) == 2
    gc(root)
    gc(root)
    assert store.manifests() == [number]
    assert not Path(root, "unlisted").exists()


def test_pin_of_what_is_gone_leaves_no_pin(root: str):
    store = made(root, Number(n=1))
    (number,) = store.manifests()
    age(root, 30)
    gc(root)
    age(root, 2, "unlisted")
    gc(root)
    with pytest.raises(StoreError, match="is gone from the store"):
        pin(root, number, name="late", user="ada", reason=None)
    assert pins(root) == []


def test_pin_names_are_taken_once(root: str):
    store = made(root, Number(n=1), Number(n=2))
    first, second = store.manifests()
    kept = pin(root, first, name="mine", user="ada", reason="why")
    assert pin(root, first, name="mine", user="eve", reason=None) == kept
    with pytest.raises(ConfigurationError, match="keeps another result"):
        pin(root, second, name="mine", user="ada", reason=None)
    assert pins(root) == [kept]


def test_invalidate_of_what_was_replaced_meanwhile_does_nothing(root: str):
    store = made(root, Number(n=1))
    (number,) = store.manifests()
    assert invalidate(root, number, user="ada", reason=None)
    made(root, Number(n=1))
    assert not invalidate(root, number, user="ada", reason=None)
    assert len(store.manifests()) == 1


def test_invalidate_also_forgets_what_gc_has_unlisted_of_it(root: str):
    store = made(root, Number(n=1))
    (number,) = store.manifests()
    unlisted.unlist(root, number, fs.read(fs.join(store.artifact_url(number), "manifest.json")))
    made(root, Folderless())
    again = store.recall([(number.step, number.fingerprint)])[number.fingerprint]
    unlisted.unlist(root, again, fs.read(fs.join(store.artifact_url(again), "manifest.json")))
    fs.create(fs.join(store.artifact_url(again), "manifest.json"), number.encode())
    assert invalidate(root, number, user="ada", reason=None)
    assert store.recall([(number.step, number.fingerprint)]) == {}


class Folderless(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        return Folder.write(ctx.output)
