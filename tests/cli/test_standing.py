"""How a run stands, said alike by every verb: also where its records are damaged, refused, stopped or not begun."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from marin.base.errors import ClusterError
from marin.cli.target import load_pipeline
from marin.run.api import plan, run_plan
from marin.run.backends.inline import InlineBackend
from marin.store import EventWriter, Store, Submission, ask_to_stop, ask_to_stop_now, write_submission
from marin.store.stop import LOOK_SECONDS

COMMAND = [sys.executable, "-m", "marin"]
RUN = "20261201-120000-abcd"
ENDED = {"run": RUN, "started": "2026-12-01T12:00:00+00:00", "finished": "2026-12-01T12:05:00+00:00"}
GATED = """
import threading
from pathlib import Path
from marin import Context, Shard, Step, Value, pipeline


def square(shard: Shard, gate: str):
    while shard.value >= 2 and not Path(gate).exists():
        threading.Event().wait(0.05)
    return shard.value ** 2


class Squares(Step[Value[int]]):
    count: int
    gate: str

    def run(self, ctx: Context) -> Value[int]:
        shards = [Shard(str(n), f"{n:064x}", (), n) for n in range(self.count)]
        return Value.write(ctx.output, len(ctx.map(square, shards, gate=self.gate)))


@pipeline
def squares(gate: str, count: int):
    return [Squares(count=count, gate=gate)]
"""


@pytest.fixture
def store(project) -> Store:
    return Store.open(os.environ["MARIN_STORE"], write=True)


@pytest.fixture
def folder(ran, store) -> Path:
    """The folder of a run that is done."""
    return Path(store.url, "runs", ran.json["run"])


def submit(store: Store, *, at: str) -> None:
    write_submission(store.url, Submission(RUN, "marin-1", "http://h:8265", at, "p.py"))


@pytest.mark.parametrize("verb", ["status", "watch", "stop", "logs -f"])
@pytest.mark.parametrize("damage", ["emptied", "deleted"])
def test_record_of_a_run_damaged_or_gone_is_named_and_nobody_waits(marin, folder, verb, damage):
    record = folder / "run.json"
    record.unlink() if damage == "deleted" else record.write_bytes(b"")
    began = time.monotonic()
    done = marin(*verb.split(), folder.name)
    assert time.monotonic() - began < 10
    assert done.code == 3
    word = "missing" if damage == "deleted" else "damaged: it is empty"
    assert f"error: the record of run {folder.name} is {word}\n  at   {record}\nhint: " in done.err
    assert "waiting" not in done.out


def test_run_sent_and_not_begun_is_said_by_watch_and_status(marin, store):
    submit(store, at="2026-01-01T00:00:00+00:00")
    said = "submitted 2026-01-01 00:00:00 UTC as Ray job marin-1 to http://h:8265; not begun for "
    status = marin("status")
    assert (status.code, said in status.out) == (0, True)
    submitted = marin("status", "--json").json["submitted"]
    assert submitted == {"at": "2026-01-01T00:00:00+00:00", "address": "http://h:8265", "ray_job": "marin-1"}
    with subprocess.Popen([*COMMAND, "watch"], stderr=subprocess.PIPE, text=True) as watching:
        assert f"run {RUN}: {said}" in watching.stderr.readline()
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)


def test_stop_after_a_stop_at_once_and_the_reverse_tell_which_one_stands(marin, store):
    store.write_run(RUN, {"run": RUN, "state": "running", "steps": []})
    ask_to_stop_now(store.url, RUN, user="ada")
    again = marin("stop", RUN, "--json")
    assert "asked before: ada asked " in again.err
    assert "for a stop at once: run " in again.err
    assert "what is in flight is ended now" in again.err
    assert "checkpoint" not in again.err
    assert (again.json["first"], again.json["now"]) == (False, True)
    assert "stopping at once: ada asked for it " in marin("status").out
    other = RUN.replace("abcd", "beef")
    store.write_run(other, {"run": other, "state": "running", "steps": []})
    ask_to_stop(store.url, other, user="ada")
    now = marin("stop", other, "--now", "--json")
    assert "for a stop that keeps what is in hand; from now on it waits for nothing" in now.err
    assert (now.json["first"], now.json["now"]) == (True, True)
    stop = marin("status", other, "--json").json["stop"]
    assert (stop["user"] != "ada", stop["now"]) == (True, True)


def rewound(store: Store, run: str) -> None:
    """Let a run have ended long ago: of one that has just ended events may be on their way."""
    store.write_run(run, {**(store.read_run(run) or {}), **ENDED, "run": run})


def test_status_without_events_says_what_the_record_knows_and_what_is_gone(marin, ran, store, folder):
    rewound(store, folder.name)
    shutil.rmtree(folder / "events")
    status = marin("status")
    assert status.code == 0
    assert f"damaged: all events are missing, in {folder}/events" in status.out
    assert "waiting" not in status.out
    steps = marin("status", "--json").json["steps"]
    assert [(each["state"], each["digest"]) for each in steps] == [
        (each["state"], each["digest"]) for each in ran.json["steps"]
    ]


def test_status_with_garbled_events_is_one_statement(marin, store, folder):
    rewound(store, folder.name)
    for file in (folder / "events").iterdir():
        file.write_bytes(b"garbled\n" * 3)
    status = marin("status")
    assert status.out.count("damaged: ") == 1
    assert " lines of " in status.out
    assert "waiting" not in status.out
    assert status.err == ""
    assert "cannot be read" in marin("status", "--json").json["damage"]


@pytest.mark.parametrize("verb", ["status", "logs"])
def test_events_that_are_a_file_are_named(marin, folder, verb):
    shutil.rmtree(folder / "events")
    (folder / "events").touch()
    done = marin(verb)
    assert done.code == 3
    assert f"their folder is a file\n  at   {folder}/events\nhint: move that file away" in done.err


def test_stopped_map_keeps_its_shards_in_every_json(marin, store, tmp_path):
    (tmp_path / "gated.py").write_text(GATED)
    gate = tmp_path / "gate"
    target = [str(tmp_path / "gated.py"), "--gate", str(gate), "--count"]
    arguments = ["--backend", "inline", "--store", store.url]
    assert marin("run", *target, "2", *arguments).code == 0
    with subprocess.Popen(
        [*COMMAND, "run", *target, "6", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        ends = time.monotonic() + 30
        while len(store.runs()) < 2 or not Path(store.url, "runs", store.runs()[0], "events").exists():
            assert time.monotonic() < ends
            threading.Event().wait(0.05)
        run = store.runs()[0]
        assert marin("stop", run).code == 0
        timer = threading.Timer(LOOK_SECONDS + 0.5, gate.touch)
        timer.start()
        running.communicate(timeout=60)
        timer.join()
    assert running.returncode == 130
    status, watch = marin("status", run, "--json"), marin("watch", run, "--json")
    assert (status.json, watch.code) == (watch.json, 130)
    (step,) = status.json["steps"]
    assert (step["state"], step["shards"]["reused"], step["shards"]["total"]) == ("stopped", 2, 6)
    assert len(step["fingerprint"]) == 64
    assert status.json["next"].startswith("marin run --backend inline")
    text = marin("watch", run)
    assert "stopped: stopped" not in text.err
    assert "6 (2 reused)" in text.out


def test_watch_of_an_ended_run_shows_its_own_times_and_exits_as_it_did(marin, store):
    steps = [{"name": "a", "step": "a", "state": "failed", "seconds": 299.0, "attempts": 1}]
    steps[0]["error"] = {"type": "ValueError", "message": "no", "where": "a.py:1", "hint": "mend it"}
    store.write_run(RUN, {**ENDED, "state": "failed", "store": store.url, "steps": steps})
    began = time.monotonic()
    watched = marin("watch")
    assert time.monotonic() - began < 2
    assert watched.code == 1
    assert "1 failed in 5 min 0 s, finished 2026-12-01 12:05:00 UTC\n" in watched.err
    assert "a failed in" not in watched.err, "nothing happens now"
    status = marin("status")
    assert "failed, started 2026-12-01 12:00:00 UTC, finished 2026-12-01 12:05:00 UTC" in status.out
    stands = marin("status", "--json").json
    assert (stands["started"], stands["finished"]) == (ENDED["started"], ENDED["finished"])
    assert stands["steps"][0]["error"]["message"] == "no"


class Refusing(InlineBackend):
    """A cluster that can hold nothing."""

    def check(self, name, step) -> None:
        raise ClusterError(f"no node can hold {name}", where=f"step {name}", hint="ask for less")


def test_refused_run_is_told_alike_by_every_verb(marin, store):
    steps = load_pipeline("counting.py").parse({})
    with pytest.raises(ClusterError):
        run_plan(plan(steps, store=store.url), store=store.url, backend=Refusing())
    status, watch = marin("status"), marin("watch")
    stands = marin("status", "--json").json
    assert marin("watch", "--json").json == stands
    assert (status.code, watch.code, stands["state"]) == (0, 3, "failed")
    assert {step["state"] for step in stands["steps"]} == {"stopped"}
    assert stands["error"]["message"] == "no node can hold numbers"
    for text in (status, watch):
        assert "error: no node can hold numbers" in text.err
        assert text.out.count("stopped") == len(steps) + 2
        assert "waiting" not in text.out


def test_names_from_elsewhere_only_show(marin, store):
    store.write_run(RUN, {"run": RUN, "state": "running", "steps": []})
    ask_to_stop(store.url, RUN, user="a\x1b]0;x\x07\nerror: b")
    status = marin("status")
    assert "stopping: a\\x1b]0;x\\x07" in status.out
    error = {"type": "StoreError", "message": "a\x1b[2J\nhint: \u202eb", "where": "c\x9b", "hint": "d\ne"}
    store.write_run(RUN, {**ENDED, "state": "failed", "steps": [], "error": error})
    assert marin("status").err == "error: a\\x1b[2J\\nhint: \\u202eb\n  at   c\\x9b\nhint: d\\ne\n"
    told = marin("status", "--json")
    assert told.json["error"] == error
    assert told.out.replace("\n", "").isprintable()


def test_steps_are_told_in_the_order_in_which_they_happened(marin, store):
    steps = [{"name": name, "step": name, "state": "waiting"} for name in ("a", "b")]
    store.write_run(RUN, {"run": RUN, "state": "running", "store": store.url, "steps": steps})
    with subprocess.Popen([*COMMAND, "watch"], stderr=subprocess.PIPE, text=True) as watching:
        early, late = (EventWriter(store.url, RUN, name) for name in ("driver", "worker"))
        early.emit("state", name="a", state="running", attempt="1")
        early.flush()
        early.emit("state", name="a", state="done")
        late.emit("state", name="b", state="running", attempt="1")
        late.close()
        threading.Event().wait(0.7)
        early.close()
        lines = [watching.stderr.readline().split(maxsplit=1)[1] for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)
    assert [line.split(" in ")[0].strip() for line in lines] == ["a running", "a done", "b running"]
    assert json.loads(Path(store.url, "runs", RUN, "run.json").read_text())["state"] == "running"
