"""Whole runs on a storage that misbehaves: they end done, or with an error that says what to do, never wrong.

Whatever happened, the same run once more, on a storage that behaves, ends done with the digests of an undisturbed one.
"""

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import fault_pipeline
import pytest

from marin import Context, Folder, Step
from marin.base.errors import MarinError
from marin.fs.faults import TRIES
from marin.run import api
from marin.run.result import RunResult
from marin.store import Store
from marin.testing import FaultyStorage, Point, Rule, Script
from marin.testing.rules import Fault
from marin.testing.storage import place

MODULES = Path(__file__).parent / "modules"
STORAGE_NAME = "unanswered"
NOWHERE = Point("marin.testing.never")
WRITES = "[!ril]*"  # neither read nor info nor list
TIMELESS = "*[!l]"  # not the events (.jsonl): how many files they fill depends on the time


def everywhere(fault: Fault, probability: float) -> tuple[Rule, ...]:
    """Return rules for all calls but those that give a lease back.

    A lease that a run could not give back costs the next one 90 s while the process lives on, as this one does.
    """
    return tuple(Rule(fault, path=path, probability=probability) for path in ("*[!n]", "*[!d].json"))


FAMILIES = {
    "answers lost": everywhere("lost", 0.1),
    "answers lost, met again": (Rule("412", operation="create", probability=0.3),),
    "conflicts": (Rule("409", operation="create", probability=0.2),),
    "overload": everywhere("503", 0.15),
    "timeouts": everywhere("timeout", 0.15),
    "long outage": everywhere("503", 0.6),
    "no permission now and then": everywhere("denied", 0.01),
    "a full disk": (Rule("full", operation="put", probability=0.1),),
    "reads cut short": (),
    "reads with a flipped bit": (),
    "slow, and anything": (
        Rule("slow", probability=0.5),
        *everywhere("lost", 0.03),
        *everywhere("503", 0.03),
        *everywhere("timeout", 0.03),
        *everywhere("denied", 0.002),
        Rule("412", operation="create", probability=0.1),
    ),
}
DAMAGED: dict[str, Fault] = {
    "reads cut short": "cut",
    "reads with a flipped bit": "flip",
    "slow, and anything": "flip",
}
NUM_READS = 60  # of a whole run, about; the damaged ones lie ten apart, so that no record is read wrong twice


def rules_of(family: str, seed: int) -> tuple[Rule, ...]:
    """Return what goes wrong in a family, and which of the reads."""
    numbers = random.Random(seed).sample(range(1 + seed % 10, NUM_READS, 10), 4)
    damaged = [Rule(DAMAGED[family], operation="read", nth=number) for number in numbers if family in DAMAGED]
    return (*FAMILIES[family], *damaged)


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))]


@pytest.fixture(autouse=True)
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULT_SIDE", str(tmp_path / "side"))
    return tmp_path / "side"


def run(url: str) -> RunResult:
    return api.run_plan(api.plan(fault_pipeline.letter(), store=url), store=url, backend="inline")


def digests(result: RunResult) -> dict[str, str | None]:
    assert result.state == "done", [step.error for step in result.steps if step.error]
    return {step.name: step.digest for step in result.steps}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULT_SIDE", str(folder / "side"))
        return digests(run(str(folder / "store")))


def ended_well_or_with_a_hint(storage: FaultyStorage, expected: dict[str, str | None]) -> bool:
    """Run on a storage that misbehaves; return whether it came to its end."""
    refused, result = None, None
    try:
        result = run(storage.url("store"))
    except MarinError as error:
        refused = error
    if result is None:
        assert refused is not None
        assert refused.hint
        return False
    for step in result.steps:
        assert step.digest in (None, expected[step.name])
        if step.state == "failed":
            assert step.error is not None
            assert step.error["hint"]
            assert step.error["message"]
            assert not committed(storage, step.step), f"{step.name} succeeded, and is called a failure: {step.error}"
    assert (result.state == "done") == all(step.state in ("done", "cached") for step in result.steps)
    return result.state == "done"


def committed(storage: FaultyStorage, step: str) -> bool:
    """Whether a step's manifest is there, past all faults."""
    return any(path.endswith("/manifest.json") for path in storage.objects.below(f"store/artifacts/{step}"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_run_under_faults_ends_done_or_with_a_hint(undisturbed: dict[str, str | None], family: str, seed: int):
    storage = FaultyStorage.memory("engine", seed=seed, sleep=lambda seconds: None)
    url = storage.url("store")
    Store.open(url, write=True)
    storage.rules = rules_of(family, seed)
    for _ in range(3):
        if ended_well_or_with_a_hint(storage, undisturbed):
            break
    storage.rules = ()
    assert digests(run(url)) == undisturbed
    assert {step.state for step in run(url).steps} == {"cached"}


class Unanswered(Step[Folder]):
    """Ends well, and then the store stops answering about its manifest, though it stores it."""

    def run(self, ctx: Context) -> Folder:
        ctx.output.write("x", b"x")
        silence = {"path": "*/unanswered/*/manifest.json", "first": TRIES}
        storage = place(f"{STORAGE_NAME}/x").storage
        storage.rules = [Rule("lost", operation="create", **silence), Rule("timeout", operation="read", **silence)]
        return Folder.write(ctx.output)


def test_commit_that_got_no_answer_at_all_is_no_failure():
    storage = FaultyStorage.memory(STORAGE_NAME)
    url = storage.url("store")
    result = api.run_plan(api.plan(Unanswered(), store=url), store=url, backend="inline")
    assert storage.calls["create"] > TRIES
    assert (result.state, result.steps[0].state) == ("done", "done")


def test_records_that_cannot_be_left_beside_a_result_cost_no_step(undisturbed: dict[str, str | None]):
    beside = ("*/log.txt", "*/result.json", "*/events/*")
    storage = FaultyStorage.memory("engine", [Rule("denied", operation="put", path=path) for path in beside])
    assert digests(run(storage.url("store"))) == undisturbed


class Wrong(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        raise ValueError("no luck")


def test_error_of_a_step_is_told_though_its_log_cannot_be_stored(caplog: pytest.LogCaptureFixture):
    storage = FaultyStorage.memory("engine", [Rule("denied", operation="put", path="*/log.txt")])
    url = storage.url("store")
    (step,) = api.run_plan(api.plan(Wrong(), store=url), store=url, backend="inline").steps
    assert step.error is not None
    assert step.error["message"] == "ValueError: no luck"
    (kept,) = re.findall(r"the log is kept on this machine, in (\S+)", caplog.text)
    assert "ValueError: no luck" in Path(kept).read_text()
    Path(kept).unlink()


@pytest.fixture(scope="module")
def driver() -> Iterator[Script]:
    path = os.pathsep.join([str(MODULES), *filter(None, [os.environ.get("PYTHONPATH")])])
    imports = ("marin.run.api", "marin.run.backends.inline", "marin.testing.filesystem", "fault_pipeline")
    with Script(MODULES / "fault_driver.py", imports=imports, env={"PYTHONPATH": path}) as script:
        yield script


@pytest.fixture(scope="module")
def num_writes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How often a whole run creates, puts or deletes."""
    storage = FaultyStorage.memory("counted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULT_SIDE", str(tmp_path_factory.mktemp("counted") / "side"))
        run(storage.url("store"))
    return sum(fnmatch(call.operation, WRITES) and fnmatch(call.path, TIMELESS) for call in storage.log)


SHARES = [*range(0, 100, 7), *(pytest.param(share, marks=pytest.mark.slow) for share in range(100) if share % 7)]


@pytest.mark.parametrize("fault", ["kill-before", "kill-after"])
@pytest.mark.parametrize("share", SHARES)
def test_driver_killed_before_or_after_any_write_is_followed_by_one_that_ends(
    tmp_path: Path, undisturbed: dict[str, str | None], driver: Script, num_writes: int, fault: str, share: int
):
    rule = Rule(fault, operation=WRITES, path=TIMELESS, nth=1 + share * num_writes // 100)
    storage = FaultyStorage.folder(tmp_path / "lab", [rule])
    url = storage.url("store")
    assert driver.killed([url], NOWHERE, env={"FAULT_SIDE": str(tmp_path / "side")})
    storage.rules = ()
    assert digests(run(url)) == undisturbed
    assert Counter((tmp_path / "side").read_text().split()).most_common(1)[0][1] <= 2


RECORDS = {
    "manifest": "store/artifacts/total/*/manifest.json",
    "shard": "store/shards/*/manifest.json",
    "recipe": "store/artifacts/total/*/recipe.json",
    "lease": "store/artifacts/total/*/leases/1.json",
    "run": "store/runs/*/run.json",
    "heartbeat": "store/runs/*/heartbeat.json",
}


@pytest.mark.parametrize("fault", ["flip", "cut"])
@pytest.mark.parametrize("record", RECORDS)
def test_control_record_read_wrong_once_is_a_miss_at_most(
    undisturbed: dict[str, str | None], caplog: pytest.LogCaptureFixture, record: str, fault: str
):
    storage = FaultyStorage.memory("engine")
    url = storage.url("store")
    assert digests(run(url)) == undisturbed
    storage.rules = [Rule(fault, operation="read", path=RECORDS[record], first=1)]
    storage.log.clear()
    assert digests(run(url)) == undisturbed
    if any(call.operation == "read" and fnmatch(call.path, RECORDS[record]) for call in storage.log):
        assert "passed over" in caplog.text
    else:
        assert record not in ("manifest",)


@pytest.mark.parametrize("fault", ["flip", "cut"])
def test_data_read_wrong_is_a_named_error_and_never_computed_with(undisturbed: dict[str, str | None], fault: str):
    storage = FaultyStorage.memory("engine", [Rule(fault, operation="read", path="store/shards/*/square.txt", nth=3)])
    result = run(storage.url("store"))
    assert [step.state for step in result.steps] == ["done", "failed", "blocked"]
    error = result.step("total").error
    assert error is not None
    assert "`square.txt` does not have the digest that was recorded" in str(error["message"])
    assert "/square.txt" in str(error["where"])
    assert digests(run(storage.url("store"))) == undisturbed


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": lambda data: data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 4]) + data[len(data) // 3 + 1 :],
    "other json": lambda data: b'{"kind": "greeting", "schema": 1}',
    "deleted": lambda data: None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_any_object_damaged_at_rest_is_a_miss_or_a_named_error(undisturbed: dict[str, str | None], damage: str):
    storage = FaultyStorage.memory("engine")
    url = storage.url("store")
    assert digests(run(url)) == undisturbed
    whole = {path: storage.objects.get(path) for path in storage.objects.below("store")}
    for path, data in whole.items():
        put(storage, path, DAMAGE[damage](data) if data else None)
        ended_well_or_with_a_hint(storage, undisturbed)
        for each in storage.objects.below("store"):
            put(storage, each, whole.get(each))
        put(storage, path, data)


def put(storage: FaultyStorage, path: str, data: bytes | None) -> None:
    if data is None:
        storage.objects.delete(path)
    else:
        storage.objects.put(path, data)
