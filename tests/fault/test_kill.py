"""Drivers killed with SIGKILL at named points and at random ones: the same command again ends in the same digests.

Only what was not committed is done again, no record is torn, and nothing needs an unlock. The points are audit events
of the killed process: the names of files as they come and go, not lines of code.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fault_pipeline
import pytest

from marin.run import api
from marin.run.result import RunResult
from marin.store import Store, manifest, records
from marin.testing import Point, Script

MODULES = Path(__file__).parent / "modules"
DRIVER = MODULES / "fault_driver.py"

MANIFEST = "*/artifacts/{}/*/manifest.json"
POINTS = {
    "before the store's record": Point("os.*", "*/store.json"),
    "after the store's record": Point("os.link", "*/store.json", after=True),
    "before the first run.json": Point("os.*", "*/run.json"),
    "before the last run.json": Point("os.*", "*/run.json", nth=2),
    "before the heartbeat": Point("os.*", "*/heartbeat.json"),
    "before the lease": Point("os.*", "*/leases/1.json"),
    "after the lease": Point("os.link", "*/leases/1.json", after=True),
    "before the log": Point("open", "*/log.txt"),
    "in a shard's output": Point("os.*", "*/shards/*/square.txt", nth=3),
    "before a shard's manifest": Point("os.*", "*/shards/*/manifest.json", nth=3),
    "after a shard's manifest": Point("os.link", "*/shards/*/manifest.json", nth=3, after=True),
    "in an output file": Point("fault.half-written"),
    "after an output file": Point("os.*", "*/output/first.txt", after=True),
    "before the recipe": Point("os.*", "*/artifacts/total/*/recipe.json"),
    "before the manifest": Point("os.link", MANIFEST.format("total")),
    "after the manifest": Point("os.link", MANIFEST.format("total"), after=True),
    "before the attempt's result": Point("os.*", "*/artifacts/letter/*/result.json"),
    "before the lease is given back": Point("os.*", "*/leases/1.released.json"),
    "before the last lease is given back": Point("os.*", "*/artifacts/letter/*/leases/1.released.json"),
}
KINDS = {
    "store.json": "store",
    "manifest.json": "manifest",
    "recipe.json": "recipe",
    "run.json": "run",
    "heartbeat.json": "heartbeat",
    "1.json": "lease",
    "2.json": "lease",
    "1.released.json": "released",
    "2.released.json": "released",
}


class Trial:
    """One store, one side file, and drivers of the tiny pipeline."""

    def __init__(self, folder: Path, driver: Script) -> None:
        self.driver = driver
        self.store = folder / "store"
        self.side = folder / "side"

    def killed(self, point: Point) -> bool:
        return self.driver.killed([str(self.store)], point, env={"FAULT_SIDE": str(self.side)})

    def traced(self) -> list[list[str]]:
        return self.driver.traced([str(self.store)], env={"FAULT_SIDE": str(self.side)})

    def run(self) -> RunResult:
        """Do what is left, in this process."""
        store = str(self.store)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAULT_SIDE", str(self.side))
            return api.run_plan(api.plan(fault_pipeline.letter(), store=store), store=store, backend="inline")

    @property
    def executed(self) -> Counter[str]:
        """How often each step and shard was begun."""
        return Counter(self.side.read_text().split()) if self.side.exists() else Counter()

    def committed(self) -> set[str]:
        """Return the steps and shards that have a manifest, as a reader finds them."""
        steps = {path.parts[-3] for path in self.store.glob("artifacts/*/*/manifest.json")}
        shards = [json.loads(path.read_bytes()) for path in self.store.glob("shards/*/*/manifest.json")]
        return steps | {record["shard"]["name"] for record in shards}

    def check_records(self) -> None:
        """Every file that bears a record's name is a whole record."""
        for path in self.store.rglob("*.json"):
            if path.name.startswith("."):
                continue
            json.loads(path.read_bytes())
            kind = "shard" if "shards" in path.parts and path.name == "manifest.json" else KINDS.get(path.name)
            if kind is not None:
                assert records.decode(path.read_bytes(), kind, where=str(path)) is not None
        for path in self.store.glob("artifacts/*/*/manifest.json"):
            assert manifest.decode(path.read_bytes(), where=str(path)) is not None


@pytest.fixture(scope="module")
def driver() -> Iterator[Script]:
    imports = ("marin.run.api", "marin.run.backends.inline", "fault_pipeline")
    with Script(DRIVER, imports=imports, env={"PYTHONPATH": search_path()}) as script:
        yield script


def search_path() -> str:
    return os.pathsep.join([str(MODULES), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def trial(tmp_path: Path, driver: Script) -> Trial:
    return Trial(tmp_path, driver)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, driver: Script) -> dict[str, str | None]:
    result = Trial(tmp_path_factory.mktemp("undisturbed"), driver).run()
    assert result.state == "done"
    return {step.name: step.digest for step in result.steps}


@pytest.fixture(scope="module")
def num_events(tmp_path_factory: pytest.TempPathFactory, driver: Script) -> int:
    """How many audit events of a whole run name a file of its store."""
    trial = Trial(tmp_path_factory.mktemp("traced"), driver)
    return sum(any(path.startswith(str(trial.store)) for path in paths) for _, *paths in trial.traced())


def check_recovery(trial: Trial, undisturbed: dict[str, str | None]) -> None:
    """Run again: the same digests, and nothing done again that was committed."""
    trial.check_records()
    before, kept = trial.executed, trial.committed()
    result = trial.run()
    assert result.state == "done"
    assert {step.name: step.digest for step in result.steps} == undisturbed
    again = set(trial.executed - before)
    everything = {"squares", "total", "letter", *(f"{number:04d}" for number in range(fault_pipeline.SHARDS))}
    assert again == everything - kept
    assert max(trial.executed.values()) <= 2
    trial.check_records()
    store = Store.open(str(trial.store), write=False)
    assert sorted(each.step for each in store.manifests()) == ["letter", "squares", "total"]
    assert (store.read_run(result.run) or {})["state"] == "done"
    assert {step.state for step in trial.run().steps} == {"cached"}


@pytest.mark.parametrize("name", POINTS)
def test_kill_at_a_named_point(trial: Trial, undisturbed: dict[str, str | None], name: str):
    assert trial.killed(POINTS[name]), f"the driver never came to the point {name!r}"
    check_recovery(trial, undisturbed)


def chances(count: int) -> list[float]:
    """Return seeded numbers between 0 and 1, spread over the whole run."""
    chance = random.Random(20)
    return [(number + chance.random()) / count for number in range(count)]


RANDOM = [
    *[pytest.param(share, id=f"{share:.3f}") for share in chances(25)],
    *[pytest.param(share, id=f"{share:.3f}-slow", marks=pytest.mark.slow) for share in chances(100)],
]


@pytest.mark.parametrize("share", RANDOM)
def test_kill_anywhere(trial: Trial, undisturbed: dict[str, str | None], num_events: int, share: float):
    trial.killed(Point(path=f"{trial.store}*", nth=1 + int(share * num_events), after=share * 1000 % 2 > 1))
    check_recovery(trial, undisturbed)


def test_kill_again_and_again_ends_all_the_same(trial: Trial, undisturbed: dict[str, str | None]):
    for name in ("before a shard's manifest", "before the manifest", "in an output file"):
        assert trial.killed(POINTS[name])
    check = Counter(trial.executed)
    assert check["0000"] == check["0001"] == check["squares"] / 2 == 1
    check_recovery(trial, undisturbed)
