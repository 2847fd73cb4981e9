"""The generation fence, and logs on stores that cannot append."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from marin import fs
from marin.base.errors import StepError
from marin.run.failure import explain
from marin.run.fence import Fence, verified_checkpoints
from marin.run.log import AttemptLog, copied, redirected
from marin.run.order import Identity

IDENTITY = Identity("store", "run", "train", "train", "f" * 64, "run-1")


def test_fence_each_forming_ends_the_one_before(tmp_path):
    fence = Fence(str(tmp_path))
    first = fence.advance(IDENTITY)
    assert (first, fence.is_current(first)) == (1, True)
    second = Fence(str(tmp_path)).advance(IDENTITY)
    assert (second, fence.is_current(first), fence.is_current(second)) == (2, False, True)


def test_fence_attempt_that_was_replaced_takes_no_further_generation(tmp_path):
    zombie = Fence(str(tmp_path))
    zombie.advance(IDENTITY)
    assert zombie.advance(IDENTITY) == 2
    taken = Fence(str(tmp_path)).advance(IDENTITY)
    with pytest.raises(StepError, match="another attempt has formed the gang anew since generation 2"):
        zombie.advance(IDENTITY)
    assert zombie.is_current(taken)


def test_fence_racing_gangs_get_numbers_of_their_own(tmp_path):
    barrier = threading.Barrier(8)

    def take(_: int) -> int:
        barrier.wait()
        return Fence(str(tmp_path)).advance(IDENTITY)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(take, range(8))) == list(range(1, 9))


def test_verified_checkpoints_are_those_with_a_manifest(tmp_path):
    for name, file in (("step-1", "MANIFEST.json"), ("step-2", "state.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    assert {url.rsplit("/", 2)[1] for url in verified_checkpoints(str(tmp_path))} == {"step-1"}
    assert verified_checkpoints(str(tmp_path / "absent")) == frozenset()


def test_log_on_an_object_store_is_complete_when_closed():
    url = "memory://run-log-test/log.txt"
    log = AttemptLog(url)
    log.write("first\n")
    log.write("second\n")
    log.close()
    assert fs.read(url) == b"first\nsecond\n"


def test_log_on_disk_grows_while_it_is_written(tmp_path):
    log = AttemptLog(str(tmp_path / "a" / "log.txt"))
    log.write("now\n")
    assert (tmp_path / "a" / "log.txt").read_text() == "now\n"
    log.close()


def test_redirected_catches_what_child_processes_print(tmp_path, capfd):
    with capfd.disabled(), redirected(str(tmp_path / "log.txt")):
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        os.write(2, b"from C\n")
    text = (tmp_path / "log.txt").read_text()
    assert "from a child" in text
    assert "from C" in text


def test_copied_reaches_terminal_and_log(tmp_path, capsys):
    with copied(str(tmp_path / "log.txt")):
        print("both")
    assert capsys.readouterr().out == "both\n"
    assert (tmp_path / "log.txt").read_text() == "both\n"


def test_explain_puts_the_users_frame_first_and_folds_libraries():
    try:
        subprocess.run(["false"], check=True)
    except subprocess.CalledProcessError as error:
        failure = explain(error, hint="-")
    assert failure.where.startswith("tests/unit/run/test_fence_and_log.py") or "test_fence_and_log.py" in failure.where
    assert failure.text.index("test_fence_and_log.py") < failure.text.index("framework frames")
    assert "subprocess.py:" in failure.text.split("framework frames", 1)[1]
