"""The hash corpus: what must be equal is, what must differ does, in every process that computes it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "corpus" / "print_digests.py"
SEEDS = ["0", "1", "2", "3", "random"]


def printed(seed: str, cache: Path) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), *(["spawn"] if seed in {"0", "random"} else [])]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "XDG_CACHE_HOME": str(cache)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


@pytest.fixture(scope="module")
def by_seed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the script prints under each seed; two of them have parsed nothing before, and know no cache."""
    warm, cold = tmp_path_factory.mktemp("warm"), tmp_path_factory.mktemp("cold")
    caches = [cold / "0", cold / "1", warm, warm, warm]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SEEDS, pool.map(printed, SEEDS, caches), strict=True))


def test_corpus_equal_steps_have_one_fingerprint(by_seed: dict[str, dict[str, Any]]):
    groups = by_seed["0"]["here"]["equal"]
    assert {name: len(set(found)) for name, found in groups.items()} == dict.fromkeys(groups, 1)


def test_corpus_different_steps_have_different_fingerprints(by_seed: dict[str, dict[str, Any]]):
    here = by_seed["0"]["here"]
    named = {**here["different"], **{name: found[0] for name, found in here["equal"].items()}}
    by_fingerprint: dict[str, list[str]] = {}
    for name, fingerprint in named.items():
        by_fingerprint.setdefault(fingerprint, []).append(name)
    assert [names for names in by_fingerprint.values() if len(names) > 1] == []
    assert len(named) > 80


def test_corpus_code_is_told_apart(by_seed: dict[str, dict[str, Any]]):
    code = by_seed["0"]["here"]["code"]
    assert len(set(code.values())) == len(code) == 5


@pytest.mark.parametrize("seed", SEEDS[1:])
def test_corpus_does_not_know_the_hash_seed(by_seed: dict[str, dict[str, Any]], seed: str):
    assert by_seed[seed]["here"] == by_seed["0"]["here"]


@pytest.mark.parametrize(
    ("seed", "process"),
    [*((seed, "fork") for seed in SEEDS), ("0", "spawn"), ("random", "spawn")],
)
def test_corpus_is_the_same_in_a_child(by_seed: dict[str, dict[str, Any]], seed: str, process: str):
    assert by_seed[seed][process] == by_seed["0"]["here"]


@pytest.mark.parametrize("seed", SEEDS)
def test_corpus_is_the_same_after_pickling(by_seed: dict[str, dict[str, Any]], seed: str):
    assert by_seed[seed]["pickled"] == by_seed["0"]["here"]["different"]
