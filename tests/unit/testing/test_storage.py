"""Storage that misbehaves: each fault is what its name says, calls are counted, other processes see the same."""

import errno
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

from marin import fs
from marin.base.errors import ConfigurationError
from marin.testing import Clock, Crash, FaultyStorage, Rule


@pytest.fixture(params=["memory", "folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyStorage:
    return FaultyStorage.memory("lab") if request.param == "memory" else FaultyStorage.folder(tmp_path / "lab")


def filesystem() -> fsspec.AbstractFileSystem:
    return fsspec.filesystem("fault")


def test_without_rules_it_is_an_object_store(storage: FaultyStorage):
    root = storage.url("store")
    fs.replace(f"{root}/a/one.json", b"1")
    assert fs.create(f"{root}/two.json", b"22")
    assert not fs.create(f"{root}/two.json", b"3")
    assert fs.read(f"{root}/two.json") == b"22"
    assert fs.list_folder(root) == ["a", "two.json"]
    assert [(entry.path, entry.size) for entry in fs.list_files(root)] == [("a/one.json", 1), ("two.json", 2)]
    assert [fs.exists(f"{root}/{path}") for path in ("a", "a/one.json", "b")] == [True, True, False]
    assert [entry.path for entry in fs.glob(f"{root}/**/*.json")[1]] == ["a/one.json", "two.json"]
    fs.delete(f"{root}/two.json")
    fs.delete_folder(f"{root}/a")
    assert fs.list_folder(root) == []
    with pytest.raises(fs.NotFound):
        fs.read(f"{root}/two.json")


def test_streams_store_a_whole_file_or_nothing(storage: FaultyStorage):
    url = storage.url("store/big.bin")
    data = bytes(range(256)) * 50_000  # over two of the file system's blocks
    with fs.write_stream(url) as stream:
        for start in range(0, len(data), 1_000_000):
            stream.write(data[start : start + 1_000_000])
    assert fs.read(url) == data
    assert fs.read_range(url, 300, 4) == data[300:304]
    with fs.open_read(url) as file:
        file.seek(7_000_000)
        assert file.read(5) == data[7_000_000:7_000_005]

    def fails() -> None:
        with fs.write_stream(storage.url("store/half")) as stream:
            stream.write(data)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not fs.exists(storage.url("store/half"))


def test_create_has_one_winner_of_sixteen_threads(storage: FaultyStorage):
    barrier = threading.Barrier(16)

    def racer(number: int) -> int:
        barrier.wait()
        won = 0
        for round_number in range(50):
            try:
                filesystem().pipe_file(storage.url(f"r/{round_number}"), str(number).encode(), mode="create")
                won += 1
            except FileExistsError:
                pass
        return won

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(racer, range(16))) == 50


REFUSED = {
    "timeout": (TimeoutError, None),
    "503": (OSError, errno.EBUSY),
    "409": (OSError, errno.EIO),
    "denied": (PermissionError, None),
    "full": (OSError, errno.ENOSPC),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refused_calls_are_not_done_and_look_as_clients_see_them(storage: FaultyStorage, fault: str):
    storage.rules = [Rule(fault, operation="create")]
    kind, number = REFUSED[fault]
    with pytest.raises(kind) as caught:
        filesystem().pipe_file(storage.url("x"), b"1", mode="create")
    assert number is None or caught.value.errno == number
    assert storage.objects.below("") == {}


@pytest.mark.parametrize(("fault", "kind"), [("lost", TimeoutError), ("412", FileExistsError), ("crash-after", Crash)])
def test_answers_are_lost_after_the_call_was_done(storage: FaultyStorage, fault: str, kind: type[BaseException]):
    storage.rules = [Rule(fault, operation="create")]
    with pytest.raises(kind):
        filesystem().pipe_file(storage.url("x"), b"1", mode="create")
    assert storage.objects.get("x") == b"1"


def test_reads_are_cut_and_flipped_and_the_object_stays(storage: FaultyStorage):
    fs.replace(storage.url("x"), b"abcdef")
    storage.rules = [Rule("cut", operation="read", nth=1), Rule("flip", operation="read", nth=2)]
    assert [fs.read(storage.url("x")) for _ in range(3)] == [b"abc", b"abceef", b"abcdef"]


def test_a_crashed_client_stays_dead_and_the_others_live(storage: FaultyStorage):
    storage.rules = [Rule("crash-before", client="ada", operation="put", nth=2)]
    ada, bob = storage.url("x", client="ada"), storage.url("x", client="bob")
    fs.replace(ada, b"1")
    with pytest.raises(Crash):
        fs.replace(ada, b"2")
    with pytest.raises(Crash):
        fs.read(ada)
    assert fs.read(bob) == b"1"


def test_rules_pick_calls_by_number_pattern_and_seeded_chance(tmp_path: Path):
    def struck(seed: int) -> list[bool]:
        storage = FaultyStorage.memory("lab", [Rule("503", path="store/*", probability=0.3)], seed=seed)
        outcomes = []
        for number in range(100):
            try:
                filesystem().pipe_file(storage.url(f"store/{number}"), b"1")
                outcomes.append(False)
            except OSError:
                outcomes.append(True)
        filesystem().pipe_file(storage.url("elsewhere"), b"1")
        return outcomes

    assert struck(1) == struck(1)
    assert struck(1) != struck(2)
    assert 15 < sum(struck(1)) < 45
    first = FaultyStorage.memory("lab", [Rule("503", first=2)])
    for expected in (OSError, OSError, FileNotFoundError):
        with pytest.raises(expected):
            filesystem().cat_file(first.url("x"))


def test_latency_is_simulated_by_a_clock_and_calls_are_counted():
    clock = Clock()
    storage = FaultyStorage.memory("lab", [Rule("slow", seconds=0.03)], sleep=clock.sleep)
    fs.replace(storage.url("x"), b"1")
    fs.create(storage.url("y"), b"1")
    assert [fs.read(storage.url("x")) for _ in range(3)] == [b"1"] * 3
    assert fs.list_folder(storage.url("")) == ["x", "y"]
    assert storage.calls == {"put": 1, "create": 1, "read": 3, "list": 1}
    assert clock() == pytest.approx(6 * 0.03)
    assert storage.log[0] == ("put", "x", "")


OTHER = """
import sys
from marin import fs
print(fs.read(sys.argv[1] + "/x").decode())
try:
    fs.create(sys.argv[1] + "/y", b"2")
except fs.NotFound:
    print("not found")
print("alive")
"""


def elsewhere(storage: FaultyStorage) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OTHER, storage.url("store")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_another_process_finds_the_storage_and_its_rules_by_url_alone(tmp_path: Path):
    storage = FaultyStorage.folder(tmp_path / "lab", [Rule("flip", operation="read")])
    storage.objects.put("store/x", b"abc")
    told = elsewhere(storage)
    assert told.stdout.split() == ["acc", "alive"], told.stderr
    assert storage.objects.get("store/y") == b"2"


def test_another_process_is_killed_after_the_call(tmp_path: Path):
    storage = FaultyStorage.folder(tmp_path / "lab", [Rule("kill-after", operation="create")])
    storage.objects.put("store/x", b"abc")
    told = elsewhere(storage)
    assert (told.returncode, "alive" in told.stdout) == (-9, False)
    assert storage.objects.get("store/y") == b"2"


def test_unknown_storage_and_unknown_fault_say_what_there_is():
    with pytest.raises(ConfigurationError, match="no faulty storage at fault://nowhere/x"):
        fs.read("fault://nowhere/x")
    with pytest.raises(ConfigurationError, match="no fault 'losst'"):
        Rule("losst")  # type: ignore[arg-type]
