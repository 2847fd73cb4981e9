"""A disk that is full or read-only, and a store that vanishes: named errors, nothing torn, nothing lost.

The disk is faked for this process by refusing to open files for writing, after so many; where the machine lets a test
mount one (in a namespace of its own), a real small or read-only file system is tried too.
"""

import builtins
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import marin
from marin import Context, Placement, Shard, Step, Value, fs
from marin.base.errors import MarinError, StepError, StoreError
from marin.cli.app import call
from marin.graph.artifact import Sharded
from marin.graph.files import Output
from marin.run import api
from marin.run.result import RunResult


def square(shard: Shard, output: Output) -> int:
    output.write("square.txt", f"{shard.value**2}".encode())
    return int(shard.value) ** 2


class Squares(Step[Sharded]):
    n: int

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(f"{number:04d}", f"number {number}", (), number) for number in range(self.n)]
        return Sharded.write(ctx.output, shards=ctx.map(square, shards).shards)


def vanish(folder: str) -> None:
    """Delete a folder in which the run's own events and heartbeat may be written meanwhile."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
    raise AssertionError(f"{folder} is written faster than it can be deleted")


class Total(Step[Value[int]]):
    squares: Step[Sharded]
    trouble: Placement[str] = ""
    """Folder that is deleted in the middle of the run."""
    late: Placement[bool] = False
    """Only after the output was written."""

    def run(self, ctx: Context) -> Value[int]:
        total = sum(shard.value for shard in ctx.load(self.squares).shards)
        if self.trouble and not self.late:
            vanish(self.trouble)
        value = Value.write(ctx.output, total)
        if self.trouble and self.late:
            vanish(self.trouble)
        return value


ADDING = Total(squares=Squares(n=3))


def ran(store: Path, step: Step[Any] = ADDING) -> RunResult:
    return api.run_plan(api.plan(step, store=store), store=store, backend="inline")


def refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int, *, after: int) -> Callable[[], int]:
    """Refuse to open files below a folder for writing once `after` were; returns how often it was asked."""
    real, asked = builtins.open, 0

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        nonlocal asked
        if set(mode) & set("xwa+") and str(file).startswith(str(folder)):
            asked += 1
            if asked > after:
                raise OSError(number, os.strerror(number), str(file))
        return real(file, mode, *arguments, **options)

    monkeypatch.setattr(builtins, "open", opened)
    return lambda: asked


def outcome(store: Path) -> str:
    """Return what a run ended in, its hint behind it; only errors of marin may come out."""
    try:
        result = ran(store)
    except MarinError as error:
        return f"{error.what} {error.hint}"
    finally:
        # What a run could not give back is free once its process is gone; this process lives on.
        for leases in store.glob("artifacts/*/*/leases"):
            shutil.rmtree(leases)
    errors = [step.error for step in result.steps if step.error]
    return " ".join(f"{error['message']} {error['hint']}" for error in errors) or result.state


@pytest.mark.parametrize(
    ("number", "hint", "shares"),
    [
        (errno.ENOSPC, "free space on the disk", (0, 0.35, 0.5)),
        (errno.EROFS, "the file system is read-only", (0.2, 0.95)),
        (errno.EDQUOT, "quota", (0.3, 0.9)),
        pytest.param(errno.ENOSPC, "free space", [each / 40 for each in range(40)], marks=pytest.mark.slow),
    ],
)
def test_disk_that_refuses_from_some_write_on_is_named_and_nothing_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str, shares: Sequence[float]
):
    with monkeypatch.context() as patch:
        asked = refuse_writes(patch, tmp_path, number, after=10**9)
        expected = {step.name: step.digest for step in ran(tmp_path / "whole").steps}
        all_writes = asked()
    for share in shares:
        store, after = tmp_path / f"store-{share}", int(share * all_writes)
        with monkeypatch.context() as patch:
            refuse_writes(patch, tmp_path, number, after=after)
            end = outcome(store)
        assert os.strerror(number) in end, (after, end)
        assert hint in end, (after, end)
        assert {step.name: step.digest for step in ran(store).steps} == expected, after
        assert api.load(ADDING, store=store).value == 5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_store_on_a_disk_that_refuses_can_still_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
):
    store = tmp_path / "store"
    ran(store)
    refuse_writes(monkeypatch, tmp_path, number, after=0)
    for verb in (("status",), ("ls",), ("show", "total"), ("logs",)):
        assert call([*verb, "--store", str(store)]) == 0, capsys.readouterr().err
    assert {step.state for step in api.plan(ADDING, store=store).steps} == {"cached"}
    assert api.load(ADDING, store=store).value == 5
    with pytest.raises(StoreError, match=os.strerror(number)):
        ran(store)


def test_store_that_vanishes_during_a_run_is_made_again(tmp_path: Path):
    store = tmp_path / "store"
    assert marin.run(Total(squares=Squares(n=3), trouble=str(store)), store=store, backend="inline").value == 5
    assert marin.run(ADDING, store=store, backend="inline").value == 5
    assert {step.state for step in api.plan(ADDING, store=store).steps} == {"cached"}


def test_store_that_vanishes_under_a_written_output_is_named_and_never_a_result(tmp_path: Path):
    store = tmp_path / "store"
    with pytest.raises(StepError, match="gone") as caught:
        marin.run(Total(squares=Squares(n=3), trouble=str(store), late=True), store=store, backend="inline")
    assert "deletes from the store" in caught.value.hint
    assert api.plan(ADDING, store=store).steps[-1].state != "cached"
    assert marin.run(ADDING, store=store, backend="inline").value == 5


PIPELINE = """
from marin import Context, Folder, Step, pipeline


class Large(Step[Folder]):
    bytes: int

    def run(self, ctx: Context) -> Folder:
        ctx.output.write("small.bin", b"x" * 1000)
        ctx.output.write("large.bin", b"x" * self.bytes)
        return Folder.write(ctx.output)


@pipeline
def large(bytes: int = 1_000_000):
    return [Large(bytes=bytes)]
"""


def mounted(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a namespace in which it may mount; `marin` is the command line, `$STORE` the place."""
    if subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets no test mount a file system")
    (tmp_path / "filling.py").write_text(PIPELINE)
    (tmp_path / "store").mkdir()
    whole = f'set -u; marin() {{ {sys.executable} -m marin "$@"; }}\n{script}'
    environment = {**os.environ, "STORE": str(tmp_path / "store"), "PYTHONPATH": str(Path(marin.__file__).parents[1])}
    command = ["unshare", "-Urm", "sh", "-c", whole]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
    )


def test_full_disk_is_named_and_the_run_after_making_room_is_whole(tmp_path: Path):
    done = mounted(
        tmp_path,
        """
        mount -t tmpfs -o size=600k tmpfs "$STORE" || exit 99
        marin run filling.py --backend inline --store "$STORE"; echo "first $?"
        find "$STORE" -name 'large.bin*' -o -name '.large.bin*'
        mount -o remount,size=8m "$STORE"
        marin run filling.py --backend inline --store "$STORE"; echo "second $?"
        marin run filling.py --backend inline --store "$STORE"
        """,
    )
    said = done.stdout + done.stderr
    assert "first 3" in done.stdout or "first 1" in done.stdout, said
    assert "No space left on device" in said
    assert "free space on the disk" in said
    assert "large.bin" not in done.stdout.split("first")[1].split("second")[0]
    assert "second 0" in done.stdout, said
    assert "1 cached" in said
    assert "fault of marin" not in said


def test_read_only_disk_can_be_looked_at_and_refuses_a_run_by_name(tmp_path: Path):
    done = mounted(
        tmp_path,
        """
        mount -t tmpfs -o size=8m tmpfs "$STORE" || exit 99
        marin run filling.py --backend inline --store "$STORE" || exit 98
        mount -o remount,ro "$STORE"
        marin plan filling.py --store "$STORE" --json >/dev/null; echo "plan $?"
        marin show large --store "$STORE" --json >/dev/null; echo "show $?"
        marin run filling.py --backend inline --store "$STORE"; echo "run $?"
        """,
    )
    assert done.stdout.split()[-6:] == ["plan", "0", "show", "0", "run", "3"], done.stdout + done.stderr
    assert "the file system is read-only: choose another store" in done.stderr
    assert "fault of marin" not in done.stderr


def test_name_that_the_disk_cannot_hold_is_named(tmp_path: Path):
    output = fs.FolderOutput(str(tmp_path))
    with pytest.raises(StoreError, match="File name too long") as caught:
        output.write("x" * 300, b"1")
    assert caught.value.hint
