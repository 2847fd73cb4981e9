"""Sixteen drivers on one key, round after round: one manifest, and everybody is told the same digest."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_results import STEP, attempted

from marin import fs
from marin.store import Commit, Lease, Leases, Manifest, Store, manifest
from marin.testing import FaultyStorage, Rule

DRIVERS = 16
MODULES = Path(__file__).parent / "modules"
ROUNDS = [pytest.param(60, id="quick"), pytest.param(500, id="many", marks=pytest.mark.slow)]

TROUBLE = (
    Rule("lost", operation="create", probability=0.2),
    Rule("412", operation="create", probability=0.1),
    Rule("409", operation="create", probability=0.05),
    Rule("503", operation="create", probability=0.02),
    Rule("timeout", operation="read", probability=0.05),
    Rule("slow", seconds=0.002, probability=0.2),
)


@pytest.fixture(params=["local", "memory", "fault"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int], str]]:
    """Return what gives each driver its URL of the one store."""
    if request.param == "local":
        yield lambda number: str(tmp_path / "store")
    elif request.param == "memory":
        yield lambda number: f"memory://races-{os.path.basename(tmp_path)}/store"
    else:
        storage = FaultyStorage.memory("races", TROUBLE, seed=1)
        yield lambda number: storage.url("store", client=f"driver-{number}")
        assert storage.calls["create"] > DRIVERS


def fingerprint(number: int) -> str:
    return f"{number:064x}"[::-1]


def manifests(url: str, key: str) -> list[Manifest]:
    """Return all manifests below the folder of a key, each whole."""
    folder = fs.join(url, "artifacts", STEP, key[:16])
    found = [entry for entry in fs.list_files(folder) if entry.path.endswith("manifest.json")]
    decoded = [manifest.decode(fs.read(entry.url), where=entry.url) for entry in found]
    assert None not in decoded
    return [each for each in decoded if each is not None]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_commit_of_sixteen_threads_gives_one_manifest_and_equal_digests(url: Callable[[int], str], rounds: int):
    barrier = threading.Barrier(DRIVERS)
    stores = [Store.open(url(number), write=True) for number in range(DRIVERS)]

    def driver(number: int, key: str) -> Commit:
        data = b"tokens" if number % 2 else f"tokens of {number}".encode()
        mine = attempted(stores[number], key, f"driver-{number}", data)
        barrier.wait()
        return stores[number].commit(mine)

    with ThreadPoolExecutor(DRIVERS) as pool:
        for round_number in range(rounds):
            key = fingerprint(round_number)
            told = list(pool.map(driver, range(DRIVERS), [key] * DRIVERS))
            (stored,) = manifests(url(0), key)
            assert {each.manifest.attempt for each in told} == {stored.attempt}
            assert sum(each.outcome == "committed" for each in told) == 1
            adopted = sum(each.outcome == "adopted" for each in told)
            assert adopted == (DRIVERS // 2 if stored.attempt in odd_drivers() else DRIVERS - 1)


def odd_drivers() -> set[str]:
    return {f"driver-{number}" for number in range(1, DRIVERS, 2)}


@pytest.mark.parametrize("rounds", ROUNDS)
def test_lease_of_sixteen_threads_has_one_holder(url: Callable[[int], str], rounds: int):
    barrier = threading.Barrier(DRIVERS)
    leases = [Leases(Store.open(url(number), write=True), f"run-{number}") for number in range(DRIVERS)]

    def driver(number: int, key: str) -> str:
        barrier.wait()
        taken = leases[number].acquire(STEP, key)
        return f"run-{number} itself" if isinstance(taken, Lease) else taken.run

    with ThreadPoolExecutor(DRIVERS) as pool:
        for round_number in range(rounds // 4):
            told = list(pool.map(driver, range(DRIVERS), [fingerprint(round_number)] * DRIVERS))
            (winner,) = [each.removesuffix(" itself") for each in told if each.endswith("itself")]
            assert {each.removesuffix(" itself") for each in told} == {winner}


@pytest.mark.parametrize("rounds", ROUNDS)
def test_shard_of_sixteen_threads_is_committed_once(url: Callable[[int], str], rounds: int):
    barrier = threading.Barrier(DRIVERS)
    caches = [Store.open(url(number), write=True).shards for number in range(DRIVERS)]

    def driver(number: int, key: str) -> str:
        output = caches[number].output(key, f"driver-{number}")
        output.write("part", str(number).encode())
        barrier.wait()
        return caches[number].commit(key, "0000", output, number).digest

    with ThreadPoolExecutor(DRIVERS) as pool:
        for round_number in range(rounds // 4):
            key = fingerprint(round_number)
            (digest,) = set(pool.map(driver, range(DRIVERS), [key] * DRIVERS))
            stored = caches[0].get(key)
            assert stored is not None
            assert stored.digest == digest


@pytest.mark.parametrize("rounds", ROUNDS)
def test_commit_of_several_processes_gives_one_manifest(tmp_path: Path, rounds: int):
    store = str(tmp_path / "store")
    racers = [
        subprocess.Popen(
            [sys.executable, str(MODULES / "fault_racer.py"), store, str(number), str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    try:
        assert [line(racer) for racer in racers] == ["ready"] * len(racers)
        for round_number in range(rounds):
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
                racer.stdin.flush()
            (digest,) = {line(racer) for racer in racers}
            (stored,) = manifests(store, fingerprint(round_number))
            assert stored.digest == digest
    finally:
        for racer in racers:
            racer.communicate(timeout=30)
    assert [racer.returncode for racer in racers] == [0] * len(racers)


def line(racer: subprocess.Popen[str]) -> str:
    assert racer.stdout is not None
    return racer.stdout.readline().strip()
