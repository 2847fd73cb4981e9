"""The main job, end to end, through the command line and embedded Ray, on a small corpus; then with things killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marin import fs
from marin.store import EventReader, Store

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "pipelines" / "quickstart.py")
MODULES = Path(__file__).parent / "modules"
SMALL = ("--tokens", "20000", "--vocab-size", "512", "--context", "32")
LIMIT_SECONDS = 150

Json = dict[str, Any]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Top-level modules of the standard library: some megabytes, several shards."""
    folder = tmp_path_factory.mktemp("corpus")
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-t]*.py")):
        shutil.copy(path, folder / path.name)
    return folder


def marin_command(*arguments: str, store: Path, target: str = QUICKSTART) -> list[str]:
    return [sys.executable, "-m", "marin", "run", target, "--store", str(store), "--json", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'pipelines'}:{MODULES}"}


def marin_run(*arguments: str, store: Path, target: str = QUICKSTART) -> Json:
    """Run to the end and return the JSON of the run."""
    command = marin_command(*arguments, store=store, target=target)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment(), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def by_name(run: Json) -> dict[str, Json]:
    return {step["name"]: step for step in run["steps"]}


def states(run: Json) -> dict[str, str]:
    return {name: step["state"] for name, step in by_name(run).items()}


def digests(run: Json) -> dict[str, str]:
    return {name: step["digest"] for name, step in by_name(run).items()}


@pytest.fixture(scope="module")
def first(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """One whole run of the quickstart; later tests continue in its store."""
    store = tmp_path_factory.mktemp("quickstart") / "store"
    return store, marin_run("--files", f"{corpus}/*.py", *SMALL, store=store)


def test_quickstart_runs_every_step_and_reports_as_promised(first: tuple[Path, Json]):
    store, run = first
    assert set(run) == {"schema", "run", "state", "store", "steps"}
    assert run["state"] == "done"
    assert set(states(run).values()) == {"done"}
    promised = {
        "name",
        "step",
        "state",
        "fingerprint",
        "digest",
        "artifact",
        "attempts",
        "seconds",
        "shards",
        "metrics",
    }
    for step in run["steps"]:
        assert set(step) - {"error"} == promised
        assert Path(step["artifact"], "manifest.json").exists()
    metrics = by_name(run)["evaluate"]["metrics"]
    assert 0 < metrics["bits_per_byte"] < 9
    baseline = by_name(run)["compression-baseline"]["metrics"]
    assert 1 < baseline["xz_bits_per_byte"] < baseline["gzip_bits_per_byte"] * 1.2 < 4
    manifest = Store.open(str(store), write=False).find([("export", by_name(run)["export"]["fingerprint"])])
    (exported,) = manifest.values()
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {file.path for file in exported.files}


def test_quickstart_again_is_cached_without_ray_or_torch(first: tuple[Path, Json], corpus: Path):
    store, _ = first
    arguments = ["run", QUICKSTART, "--store", str(store), "--files", f"{corpus}/*.py", *SMALL, "--json"]
    code = (
        f"import sys\nfrom marin.cli.app import call\ncode = call({arguments!r})\n"
        "print([name for name in ('ray', 'torch', 'pyarrow', 'tokenizers') if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert set(states(json.loads(done.stdout)).values()) == {"cached"}
    assert "nothing to do: all 11 steps are cached" in done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_quickstart_other_learning_rate_runs_only_what_depends_on_it(first: tuple[Path, Json], corpus: Path):
    store, _ = first
    run = marin_run("--files", f"{corpus}/*.py", *SMALL, "--lr", "0.004", store=store)
    ran = {name for name, state in states(run).items() if state == "done"}
    assert ran == {"train", "evaluate", "export", "generate"}


def test_quickstart_one_file_more_redoes_one_shard(first: tuple[Path, Json], corpus: Path):
    store, before = first
    (corpus / "aa_new_file.py").write_text("def brand_new():\n    return 'a new file'\n" * 50)
    try:
        run = marin_run("--files", f"{corpus}/*.py", *SMALL, "-k", "tokenize", store=store)
    finally:
        (corpus / "aa_new_file.py").unlink()
    total = by_name(before)["tokenize"]["shards"]["total"]
    assert total > 3
    for name in ("files", "split/train"):
        assert by_name(run)[name]["shards"] == {"total": total, "reused": total - 1, "computed": 1}
    # The vocabulary is trained on every sixth document by hash; with the same vocabulary only one shard is encoded.
    same_vocabulary = digests(run)["train-tokenizer"] == digests(before)["train-tokenizer"]
    assert by_name(run)["tokenize"]["shards"]["computed"] == (1 if same_vocabulary else total)
    assert same_vocabulary


@pytest.fixture(scope="module")
def slow_target() -> str:
    return str(MODULES / "slow_quickstart.py")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start runs that a test will kill; what is left at the end is ended with all it started."""
    started: list[subprocess.Popen[str]] = []

    def run(command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(found: Callable[[], Any], process: subprocess.Popen[str], what: str) -> Any:
    """Return what `found` returns once it is true; fails when the run ends or the time is up before."""
    deadline, pause = time.monotonic() + LIMIT_SECONDS, threading.Event()
    while not (value := found()):
        assert process.poll() is None, f"the run ended before {what}: {process.communicate()}"
        assert time.monotonic() < deadline, f"no {what} within {LIMIT_SECONDS} s"
        pause.wait(0.05)
    return value


def events(store: Path, kind: str, name: str) -> list[Json]:
    """All events of the newest run of one kind and step."""
    runs = Store.open(str(store), write=False).runs()
    found = EventReader(str(store), runs[0]).poll() if runs else []
    return [event for event in found if event["kind"] == kind and event.get("name") == name]


def shards_done(store: Path) -> int:
    progress = [event["done"] for event in events(store, "progress", "tokenize") if event["unit"] == "shards"]
    return int(max(progress, default=0))


def checkpoints(store: Path) -> list[str]:
    return fs.glob(f"{store}/artifacts/train/*/checkpoints/step-*/MANIFEST.json")[1]


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, slow_target: str, tmp_path_factory: pytest.TempPathFactory) -> Json:
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    return marin_run("--files", f"{corpus}/*.py", store=store, target=slow_target)


def test_driver_killed_in_tokenize_and_in_train_the_same_command_continues(
    corpus: Path, slow_target: str, undisturbed: Json, start: Callable[..., Any], tmp_path: Path
):
    store = tmp_path / "store"
    command = marin_command("--files", f"{corpus}/*.py", store=store, target=slow_target)

    process = start(command)
    wait_for(lambda: shards_done(store) >= 2, process, "two tokenized shards")
    process.kill()
    process.wait()

    process = start(command)
    wait_for(lambda: checkpoints(store), process, "a checkpoint")
    (first_map,) = [event for event in events(store, "shards", "tokenize") if event["computed"] == 0][:1]
    assert first_map["reused"] >= 2
    kept = len(checkpoints(store))
    process.kill()
    process.wait()

    run = marin_run("--files", f"{corpus}/*.py", store=store, target=slow_target)
    assert states(run)["tokenize"] == "cached"
    assert states(run)["train"] == "done"
    assert kept >= 1
    steps_seen = [event["values"]["step"] for event in events(store, "metric", "train") if "step" in event["values"]]
    assert min(steps_seen) > 1, "the run began again at the first step"
    assert digests(run) == digests(undisturbed)


def test_worker_killed_in_tokenize_and_rank_in_train_the_run_goes_on(
    corpus: Path, slow_target: str, undisturbed: Json, start: Callable[..., Any], tmp_path: Path
):
    store = tmp_path / "store"
    process = start(marin_command("--files", f"{corpus}/*.py", store=store, target=slow_target))

    workers = wait_for(
        lambda: [event for event in events(store, "placement", "tokenize") if "shard" in event], process, "a worker"
    )
    os.kill(workers[-1]["pid"], signal.SIGKILL)

    wait_for(lambda: checkpoints(store), process, "a checkpoint")
    ranks = [event for event in events(store, "placement", "train") if event.get("rank") == 0]
    os.kill(ranks[-1]["pid"], signal.SIGKILL)

    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, out + err
    generations = {event["generation"] for event in events(store, "placement", "train") if "generation" in event}
    assert generations == {1, 2}
    assert digests(json.loads(out)) == digests(undisturbed)


def test_two_drivers_at_once_do_each_step_once(corpus: Path, start: Callable[..., Any], tmp_path: Path):
    store = tmp_path / "store"
    command = marin_command("--files", f"{corpus}/*.py", *SMALL, "-k", "tokenize", store=store)
    processes = [start(command) for _ in range(2)]
    outcomes = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outcomes
    runs = [json.loads(out) for out, _ in outcomes]
    assert digests(runs[0]) == digests(runs[1])
    for name in digests(runs[0]):
        assert sorted(states(run)[name] for run in runs) == ["cached", "done"]
        assert sum(by_name(run)[name]["attempts"] for run in runs) == 1


@pytest.mark.slow  # tests/numerics/test_ranks.py has it for the trainer alone
def test_two_ranks_learn_what_one_learns(undisturbed: Json, corpus: Path, slow_target: str, tmp_path: Path):
    run = marin_run("--files", f"{corpus}/*.py", "--ranks", "2", store=tmp_path / "store", target=slow_target)
    one, two = losses(undisturbed), losses(run)
    assert len(one) == len(two) == 40
    assert max(abs(a - b) / a for a, b in zip(one, two, strict=True)) <= 2e-6


def losses(run: Json) -> list[float]:
    """The loss of every step, as rank 0 logged it."""
    found = [event for event in EventReader(run["store"], run["run"]).poll() if event["kind"] == "metric"]
    logged = {event["values"]["step"]: event["values"]["loss"] for event in found if "step" in event["values"]}
    return [logged[step] for step in sorted(logged)]
