"""Whole runs on a storage that misbehaves: they end done, or with an error that says what to do, never wrong.

Whatever happened, the same run once more, on a storage that behaves, ends done with the digests of an undisturbed one.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import fault_pipeline
import pytest

from marin import fs
from marin.base.errors import MarinError
from marin.run import api
from marin.run.result import RunResult
from marin.testing import FaultyStorage, Point, Rule, Script

MODULES = Path(__file__).parent / "modules"
EVERYTHING = Point("marin.testing.never")

FAMILIES = {
    "answers lost": (Rule("lost", probability=0.1),),
    "answers lost, met again": (Rule("412", operation="create", probability=0.3),),
    "conflicts": (Rule("409", operation="create", probability=0.2),),
    "overload": (Rule("503", probability=0.15),),
    "timeouts": (Rule("timeout", probability=0.15),),
    "long outage": (Rule("503", probability=0.6),),
    "no permission now and then": (Rule("denied", probability=0.01),),
    "a full disk": (Rule("full", operation="put", probability=0.05), Rule("full", operation="create", probability=0.05)),
    "reads cut short": (Rule("cut", operation="read", probability=0.1),),
    "reads with a flipped bit": (Rule("flip", operation="read", probability=0.1),),
    "slow, and anything": (
        Rule("slow", probability=0.5),
        *(Rule(fault, probability=0.03) for fault in ("lost", "503", "timeout", "flip", "cut")),
        Rule("412", operation="create", probability=0.1),
        Rule("denied", probability=0.002),
    ),
}
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
    try:
        result = run(storage.url("store"))
    except MarinError as error:
        assert error.hint
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
    storage = FaultyStorage.memory("engine", FAMILIES[family], seed=seed, sleep=lambda seconds: None)
    url = storage.url("store")
    for _ in range(3):
        if ended_well_or_with_a_hint(storage, undisturbed):
            break
    storage.rules = ()
    assert digests(run(url)) == undisturbed
    assert {step.state for step in run(url).steps} == {"cached"}
