"""`marin gc` on random stores: what the roots reach stays, all else goes, and a kill anywhere changes nothing.

The oracle knows how the store was made and shares no code with what it tries.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import fs
from marin.graph.files import FileRef, Shard
from marin.store import Manifest, ParentRef, Producer, Store, shard_digest
from marin.store.events import dumps
from marin.store.gc.collect import GRACE_SECONDS, collect, survey
from marin.store.gc.verdict import policy_of
from marin.store.manifest import shard_record
from marin.store.records import encode

EXAMPLES = int(os.environ.get("GC_EXAMPLES", "40"))
DAY = 86_400.0
KEEP_DAYS = 7.0
OLD, RECENT = (9.0, 20.0, 400.0), (0.5, 6.0)
AT = "2026-01-01T00:00:00+00:00"
ELSEWHERE = {"host": "elsewhere", "machine": "another/boot", "pid": 1, "started": "1"}


@dataclass(frozen=True)
class RunPlan:
    age: float
    """Days since its last sign of life."""
    began: float
    """Days before that at which it began."""
    state: str

    @property
    def is_root(self) -> bool:
        return self.age < KEEP_DAYS

    @property
    def is_live(self) -> bool:
        return self.is_root and self.state == "running"

    @property
    def born(self) -> float:
        return self.age + self.began


@dataclass(frozen=True)
class ResultPlan:
    run: int
    parents: tuple[int, ...]
    shards: tuple[int, ...]
    touched_by: tuple[int, ...]
    pinned: bool
    others: tuple[int, ...]
    """Runs of other attempts at the same fingerprint."""
    checkpoints: bool
    early: bool
    """Made when its run began; otherwise at the run's end."""

    def age(self, runs: tuple[RunPlan, ...]) -> float:
        return runs[self.run].born if self.early else runs[self.run].age


@dataclass(frozen=True)
class UnfinishedPlan:
    attempts: tuple[int, ...]
    lease: int | None
    reused: tuple[int, ...]
    """Shards that its first attempt took from the cache."""


@dataclass(frozen=True)
class ShardPlan:
    run: int
    has_file: bool
    loser: int | None
    early: bool

    def age(self, runs: tuple[RunPlan, ...]) -> float:
        return runs[self.run].born if self.early else runs[self.run].age


@dataclass(frozen=True)
class StorePlan:
    runs: tuple[RunPlan, ...]
    shards: tuple[ShardPlan, ...]
    results: tuple[ResultPlan, ...]
    unfinished: tuple[UnfinishedPlan, ...]


@st.composite
def stores(draw: st.DrawFn) -> StorePlan:
    run = st.builds(
        RunPlan,
        st.sampled_from([*OLD, *RECENT]),
        st.sampled_from([0.01, 3.0, 50.0]),
        st.sampled_from(["done", "failed", "running"]),
    )
    runs = tuple(draw(st.lists(run, min_size=1, max_size=4)))
    some_run = st.integers(0, len(runs) - 1)
    some_runs = st.lists(some_run, max_size=2, unique=True).map(tuple)
    shard = st.builds(ShardPlan, some_run, st.booleans(), st.none() | some_run, st.booleans())
    shards = tuple(draw(st.lists(shard, max_size=4)))
    some_shards = st.lists(st.integers(0, len(shards) - 1), max_size=3, unique=True) if shards else st.just([])
    results: list[ResultPlan] = []
    for number in range(draw(st.integers(0, 5))):
        parents = st.lists(st.integers(0, number - 1), max_size=2, unique=True) if number else st.just([])
        results.append(
            ResultPlan(
                draw(some_run),
                tuple(draw(parents)),
                tuple(draw(some_shards)),
                draw(some_runs),
                draw(st.integers(0, 4)) == 0,
                draw(some_runs),
                draw(st.booleans()),
                draw(st.booleans()),
            )
        )
    unfinished = st.builds(UnfinishedPlan, some_runs, st.none() | some_run, some_shards.map(tuple))
    return StorePlan(runs, shards, tuple(results), tuple(draw(st.lists(unfinished, max_size=2))))


@dataclass
class Made:
    """A store as it was made: its files by what they belong to."""

    root: Path
    plan: StorePlan
    now: float = field(default_factory=time.time)
    owned: dict[tuple[object, ...], set[str]] = field(default_factory=dict)

    def write(self, path: str, data: bytes, days: float, *owner: object) -> FileRef:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        os.utime(target, (self.now - days * DAY,) * 2)
        self.owned.setdefault(owner, set()).add(path)
        return FileRef(Path(path).name, path, len(data), "0" * 64)

    def run(self, number: int) -> str:
        return f"20260101-000000-{number:06x}"

    def fingerprint(self, kind: str, number: int) -> str:
        return f"{kind}{number:02x}".ljust(16, "0") + f"{number:x}".ljust(48, "f")

    def folder(self, kind: str, number: int) -> str:
        return f"artifacts/step-{kind}/{self.fingerprint(kind, number)[:16]}"

    def attempt(self, kind: str, number: int, run: int, count: int) -> str:
        return f"{self.run(run)}-{self.fingerprint(kind, number)[:8]}-{count}"


def make(root: Path, plan: StorePlan) -> Made:
    made = Made(root, plan)
    shards = [_make_shard(made, number) for number in range(len(plan.shards))]
    manifests: list[Manifest] = []
    for number in range(len(plan.results)):
        manifests.append(_make_result(made, number, manifests, shards))
    for number in range(len(plan.unfinished)):
        _make_unfinished(made, number)
    for number in range(len(plan.runs)):
        _make_run(made, number)
    return made


def _make_shard(made: Made, number: int) -> Shard:
    plan, fingerprint = made.plan.shards[number], made.fingerprint("5", number)
    folder, days = f"shards/{fingerprint[:2]}/{fingerprint}", plan.age(made.plan.runs)
    files = ()
    if plan.has_file:
        name = f"{made.attempt('a', 0, plan.run, 1)}-{'1' * 12}"
        files = (made.write(f"{folder}/attempts/{name}/part", b"shard %d" % number, days, "shard", number),)
    if plan.loser is not None:
        name = f"{made.attempt('a', 0, plan.loser, 1)}-{'2' * 12}"
        made.write(f"{folder}/attempts/{name}/part", b"lost", made.plan.runs[plan.loser].age, "loser", number)
    shard = Shard(str(number), shard_digest(files, number), files, number)
    record = encode("shard", {"fingerprint": fingerprint, "shard": shard_record(shard)})
    made.write(f"{folder}/manifest.json", record, days, "shard", number)
    return shard


def _make_result(made: Made, number: int, above: list[Manifest], shards: list[Shard]) -> Manifest:
    plan, folder = made.plan.results[number], made.folder("a", number)
    days = plan.age(made.plan.runs)
    attempt = made.attempt("a", number, plan.run, 1)
    data = made.write(f"{folder}/attempts/{attempt}/output/data", b"data %d" % number, days, "result", number)
    made.write(f"{folder}/attempts/{attempt}/log.txt", b"log", days, "result", number)
    parents = [above[parent] for parent in plan.parents]
    manifest = Manifest(
        fingerprint=made.fingerprint("a", number),
        step="step-a",
        artifact="Folder",
        artifact_schema=1,
        files=(data,),
        shards=tuple(shards[shard] for shard in plan.shards),
        meta=None,
        digest=f"{number:064x}",
        attempt=attempt,
        epoch=1,
        run=made.run(plan.run),
        producer=Producer(),
        started=AT,
        finished="2026-01-01T00:00:01+00:00",
        seconds=1.0,
        resources={},
        metrics={},
        recipe="0" * 64,
        parents=tuple(ParentRef("x", each.step, each.fingerprint, each.digest) for each in parents),
    )
    made.write(f"{folder}/manifest.json", manifest.encode(), days, "result", number)
    for name in ("recipe.json", "leases/1.json", "leases/1.released.json"):
        made.write(f"{folder}/{name}", b"{}", days, "records", "a", number)
    for count, run in enumerate(plan.others, start=2):
        name = made.attempt("a", number, run, count)
        made.write(f"{folder}/attempts/{name}/log.txt", b"log", made.plan.runs[run].age, "attempt", "a", number, run)
    if plan.checkpoints:
        made.write(f"{folder}/checkpoints/step-1/MANIFEST.json", b"{}", days, "checkpoints", "a", number)
    if plan.pinned:
        record = {"name": f"p{number}", "step": "step-a", "fingerprint": manifest.fingerprint}
        record |= {"digest": manifest.digest, "user": "ada", "at": AT, "reason": None}
        made.write(f"pins/p{number}.json", encode("pin", record), 0, "for ever")
    return manifest


def _make_unfinished(made: Made, number: int) -> None:
    plan, folder = made.plan.unfinished[number], made.folder("b", number)
    ages = [made.plan.runs[run].age for run in plan.attempts]
    days = min([*ages, *([made.plan.runs[plan.lease].age] if plan.lease is not None else [])], default=10.0)
    for count, run in enumerate(plan.attempts, start=1):
        name, age = made.attempt("b", number, run, count), made.plan.runs[run].age
        made.write(f"{folder}/attempts/{name}/log.txt", b"log", age, "attempt", "b", number, run)
        if count == 1 and plan.reused:
            shards = [made.fingerprint("5", shard) for shard in plan.reused]
            record = encode("reused", {"shards": shards})
            made.write(f"{folder}/attempts/{name}/reused-1.json", record, age, "attempt", "b", number, run)
    if plan.lease is not None:
        record = {"fingerprint": made.fingerprint("b", number), "run": made.run(plan.lease), "process": ELSEWHERE}
        record |= {"nonce": "0", "user": "ada", "since": AT}
        made.write(f"{folder}/leases/1.json", encode("lease", record), days, "records", "b", number)
    made.write(f"{folder}/checkpoints/step-1/model", b"weights", days, "checkpoints", "b", number)


def _make_run(made: Made, number: int) -> None:
    plan, run = made.plan.runs[number], made.run(number)
    touched = [index for index, each in enumerate(made.plan.results) if number in each.touched_by]
    keys = [{"step": "step-a", "fingerprint": made.fingerprint("a", index)} for index in touched]
    told_in_events = plan.state == "running"  # its record says nothing of steps while it goes on
    record = {"run": run, "state": plan.state, "steps": [] if told_in_events else keys, "store": str(made.root)}
    record |= {"user": "ada", "host": "elsewhere", "pid": 1, "started": AT}
    events = (
        "".join(dumps({"kind": "state", "state": "cached", **key}) + "\n" for key in keys) if told_in_events else ""
    )
    made.write(f"runs/{run}/run.json", encode("run", record), plan.born, "run", number)
    made.write(f"runs/{run}/events/driver-000001.jsonl", events.encode() or b"\n", plan.age, "run", number)
    beat = encode("heartbeat", {"beat": 1, "process": ELSEWHERE})
    made.write(f"runs/{run}/heartbeat.json", beat, plan.age, "run", number)


def expected(made: Made) -> set[str]:
    """Return what must be left in the end; all else must be gone."""
    plan = made.plan
    root = [run.is_root for run in plan.runs]
    kept = {
        n
        for n, each in enumerate(plan.results)
        if each.pinned or root[each.run] or any(root[t] for t in each.touched_by)
    }
    for number in reversed(range(len(plan.results))):
        if number in kept:
            kept |= set(plan.results[number].parents)
    owners: set[tuple[object, ...]] = {("for ever",)}
    owners |= {("result", number) for number in kept}
    named = {shard for number in kept for shard in plan.results[number].shards}
    reused = {s for each in plan.unfinished if each.attempts and root[each.attempts[0]] for s in each.reused}
    born_under = max((run.born for run in plan.runs if run.is_live), default=0.0)
    for number, shard in enumerate(plan.shards):
        age = shard.age(plan.runs)
        made_by_root = root[shard.run] and (shard.has_file or age < KEEP_DAYS)  # a value alone names no run
        if number in named | reused or made_by_root or age <= born_under:
            owners.add(("shard", number))
        if shard.loser is not None and (root[shard.loser] or age < KEEP_DAYS):
            owners.add(("loser", number))
    works = [("a", n, (each.run, *each.others), None) for n, each in enumerate(plan.results)]
    works += [("b", n, each.attempts, each.lease) for n, each in enumerate(plan.unfinished)]
    for kind, number, attempts, lease in works:
        # What was replaced lately may still be read: other attempts stay as long as the result itself is young.
        young = kind == "a" and plan.results[number].age(plan.runs) < KEEP_DAYS
        owners |= {("attempt", kind, number, run) for run in attempts if root[run] or young}
        worked_on = any(root[run] for run in attempts) or (lease is not None and root[lease])
        if worked_on:
            owners.add(("checkpoints", kind, number))
        if worked_on or (kind == "a" and number in kept):
            owners.add(("records", kind, number))
    makers = {plan.results[number].run for number in kept}
    owners |= {("run", number) for number in range(len(plan.runs)) if root[number] or number in makers}
    return {path for owner in owners for path in made.owned.get(owner, ())}


def stored(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def apply(root: Path) -> None:
    collect(Store(str(root)), lambda now: policy_of(now, days=KEEP_DAYS, grace=GRACE_SECONDS))


def let_the_grace_pass(root: Path) -> None:
    for path in (root / "unlisted").rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - GRACE_SECONDS - 1,) * 2)


@contextmanager
def made_store(plan: StorePlan) -> Iterator[Made]:
    with tempfile.TemporaryDirectory() as folder:
        yield make(Path(folder), plan)


@given(stores())
@settings(max_examples=EXAMPLES)
def test_gc_leaves_exactly_what_the_roots_reach_and_is_idempotent(plan: StorePlan):
    with made_store(plan) as made:
        wanted, all_files = expected(made), stored(made.root)
        outputs = {path for path in all_files if "/attempts/" in path and not path.endswith(("log.txt", ".json"))}
        losers = {path for owner, paths in made.owned.items() if owner[0] == "loser" for path in paths}
        verdict = survey(Store(str(made.root)), policy_of(time.time(), days=KEEP_DAYS, grace=GRACE_SECONDS))
        assert stored(made.root) == all_files
        assert (verdict.candidates == []) == (wanted == all_files)
        apply(made.root)
        left = stored(made.root)
        assert wanted | (outputs - losers) <= left  # what was listed keeps its files for the grace period
        assert not (made.root / "gc").exists()
        apply(made.root)
        assert stored(made.root) == left
        let_the_grace_pass(made.root)
        apply(made.root)
        assert stored(made.root) == wanted
        apply(made.root)
        assert stored(made.root) == wanted


class Killed(Exception):
    """The collector's process died."""


def killed_and_run_again(plan: StorePlan, operation: str, calls: int) -> bool:
    """Let a collector die at a call to the storage, and the next ones do the rest; return whether one has died."""
    with made_store(plan) as made, pytest.MonkeyPatch.context() as patch:
        original, left, lock = getattr(fs, operation), [calls], threading.Lock()

        def dying(*arguments: Any, **options: Any) -> Any:
            # The lease of collecting itself: that its process is gone cannot be told of one that lives on here.
            if f"{made.root}/gc/" not in arguments[0]:
                with lock:
                    left[0] -= 1
                    dies = left[0] == -1
                if dies:
                    raise Killed(operation)
            return original(*arguments, **options)

        patch.setattr(fs, operation, dying)
        for _ in range(2):
            try:
                apply(made.root)
            except Killed:
                apply(made.root)
            let_the_grace_pass(made.root)
        apply(made.root)
        let_the_grace_pass(made.root)
        apply(made.root)
        assert stored(made.root) == expected(made), (operation, calls)
        return left[0] < 0


OPERATIONS = ["delete", "replace", "create", "delete_unchanged"]
OF_EACH_KIND = StorePlan(
    runs=(RunPlan(9.0, 3.0, "done"), RunPlan(0.5, 0.01, "failed"), RunPlan(20.0, 0.01, "running")),
    shards=(ShardPlan(0, True, 2, False), ShardPlan(0, True, None, False), ShardPlan(0, False, None, False)),
    results=(
        ResultPlan(0, (), (0,), (), False, (2,), True, False),
        ResultPlan(0, (0,), (1,), (), False, (1,), True, False),
        ResultPlan(2, (), (), (), True, (), True, False),
    ),
    unfinished=(UnfinishedPlan((0,), 2, ()), UnfinishedPlan((1,), None, (2,))),
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_gc_killed_at_each_call_and_run_again_ends_the_same(operation: str):
    calls = 0
    while killed_and_run_again(OF_EACH_KIND, operation, calls):
        calls += 1
    assert calls >= 2


@given(stores(), st.sampled_from(OPERATIONS), st.integers(0, 20))
@settings(max_examples=EXAMPLES // 2)
def test_gc_killed_anywhere_and_run_again_ends_the_same(plan: StorePlan, operation: str, calls: int):
    killed_and_run_again(plan, operation, calls)
