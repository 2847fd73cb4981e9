"""`verify`, `pin`, `unpin`, `invalidate`, `gc`: what the store holds stays, or goes, as it was told."""

import os
import time
from pathlib import Path

import pytest

from marin import fs

KEPT_FOR_EVER = {"code", "locks", "blessed"}  # records of what code and installations were: small, and shared
RUN = ("run", "counting.py", "--backend", "inline")


def artifact(ran, number: int) -> Path:
    return Path(ran.json["steps"][number]["artifact"])


def age(folder: Path, seconds: float) -> None:
    """Let everything below a folder have been written that much earlier."""
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            os.utime(path, (status.st_atime, status.st_mtime - seconds))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_verify_whole_store_exits_with_zero(marin, ran):
    for deep in ((), ("--deep",)):
        done = marin("verify", "--json", *deep)
        assert done.code == 0
        assert set(done.json) == {"schema", "checked", "records", "bytes", "bad"}
        assert done.json["checked"] == 8  # 4 shards, a model, a value, scores and a table
        assert done.json["bad"] == []
    assert "all good" in marin("verify", "learn").err


def test_verify_missing_and_short_files_are_named_with_their_artifact(marin, ran):
    model = next(artifact(ran, 1).rglob("model.bin"))
    model.write_bytes(b"x" * 999)
    (bad,) = marin("verify", "--json").json["bad"]
    assert bad == {
        "artifact": str(artifact(ran, 1)),
        "file": str(model),
        "problem": "it has 999 bytes instead of 1,000",
    }
    model.unlink()
    done = marin("verify", "learn")
    assert done.code == 1
    assert f"{model}: it is missing" in done.out
    assert "hint: delete a bad file" in done.err
    assert marin("verify", "score").code == 0


def test_verify_deep_finds_a_flipped_bit_and_the_hint_mends_it(marin, ran):
    model = next(artifact(ran, 1).rglob("model.bin"))
    model.write_bytes(b"y" + b"x" * 999)
    assert marin("verify").code == 0
    done = marin("verify", "--deep", "--json")
    assert done.code == 1
    assert [bad["file"] for bad in done.json["bad"]] == [str(model)]
    model.unlink()
    states = {step["name"]: step["state"] for step in marin(*RUN, "--json").json["steps"]}
    assert states == {"numbers": "cached", "learn/small": "done", "score": "cached", "complete": "cached"}
    assert marin("verify", "--deep").code == 0


@pytest.mark.parametrize("kind", ["artifacts/*/*/manifest.json", "shards/*/*/manifest.json", "runs/*/run.json"])
def test_verify_record_that_is_torn_is_bad(marin, ran, store, kind):
    record = next(store.glob(kind))
    record.write_bytes(record.read_bytes()[:50])
    (bad,) = marin("verify", "--json").json["bad"]
    assert (bad["file"], bad["artifact"]) == (str(record), str(record.parent))
    assert bad["problem"] == "the record is no JSON"


def test_pin_is_shown_by_ls_and_taken_back(marin, ran):
    done = marin("pin", "learn", "--name", "paper-v1", "--reason", "figure 3", "--json")
    assert set(done.json) == {"schema", "pin", "artifact", "step", "fingerprint", "digest", "user", "at", "reason"}
    assert (done.json["pin"], done.json["reason"]) == ("paper-v1", "figure 3")
    assert done.json["fingerprint"] == ran.json["steps"][1]["fingerprint"]
    listed = {each["step"]: each["pinned"] for each in marin("ls", "--json").json["artifacts"]}
    assert listed == {"numbers": [], "learn": ["paper-v1"], "score": [], "complete": []}
    assert "paper-v1" in next(line for line in marin("ls").out.splitlines() if line.startswith("learn"))
    assert marin("pin", "learn", "--name", "paper-v1").code == 0  # said twice, meant once
    taken = marin("pin", "score", "--name", "paper-v1")
    assert taken.code == 2
    assert "keeps another result, learn" in taken.err
    assert marin("unpin", "paper-v1", "--json").json["unpinned"] == ["paper-v1"]
    assert marin("unpin", "paper-v1").code == 2


def test_unpin_by_artifact_takes_back_all_its_pins(marin, ran):
    marin("pin", "learn")
    marin("pin", "learn", "--name", "other")
    marin("pin", "score")
    assert marin("unpin", "learn", "--json").json["unpinned"] == sorted(
        ["other", f"learn-{ran.json['steps'][1]['fingerprint'][:8]}"]
    )
    assert "did you mean `score-" in marin("unpin", f"scor-{ran.json['steps'][2]['fingerprint'][:8]}").err


@pytest.mark.parametrize("verb", ["pin", "invalidate"])
def test_artifact_that_is_ambiguous_lists_the_candidates(marin, ran, verb):
    again = marin(*RUN, "--json", "--lr", "0.2").json
    done = marin(verb, "learn")
    assert done.code == 2
    assert "'learn' names 2 artifacts" in done.err
    for run in (ran.json, again):
        assert f"at   learn {run['steps'][1]['fingerprint'][:12]}" in done.err
    assert marin(verb, "nothing-there").code == 2


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden"])
def test_pin_name_that_is_no_file_name_is_refused(marin, ran, name, store):
    if name:
        assert marin("pin", "learn", "--name", name).code == 2
    assert not list(store.glob("pins/*"))


def test_invalidate_runs_it_again_and_tells_who_read_it(marin, ran):
    done = marin("invalidate", "learn", "--reason", "bad node", "--json")
    assert set(done.json) == {"schema", "step", "artifact", "fingerprint", "digest", "undone", "readers"}
    assert {each["step"] for each in done.json["readers"]} == {"score", "complete"}
    states = {step["name"]: step["state"] for step in marin(*RUN, "--json").json["steps"]}
    assert states == {"numbers": "cached", "learn/small": "done", "score": "cached", "complete": "cached"}
    undone = marin("invalidate", "learn", "--undo")
    assert undone.code == 3
    assert "it has been made anew since" in undone.err


def test_invalidate_can_be_undone_and_refuses_what_is_pinned(marin, ran, store):
    before = files(store / "artifacts")
    out = marin("invalidate", "numbers")
    assert out.out.splitlines()[1].startswith("3 results were made from it")
    assert "marin invalidate" in out.err
    assert marin("plan", "counting.py", "--check").code == 1
    assert marin("invalidate", "numbers", "--undo").code == 0
    assert files(store / "artifacts") == before
    assert marin("plan", "counting.py", "--check").code == 0
    marin("pin", "numbers", "--name", "mine")
    refused = marin("invalidate", "numbers")
    assert refused.code == 2
    assert "hint: `marin unpin mine` first" in refused.err


def test_gc_dry_run_changes_nothing_and_keeps_recent_runs(marin, ran, store):
    before = files(store)
    done = marin("gc", "--json")
    assert set(done.json) == {"schema", "applied", "candidates", "bytes", "kept", "unlisted", "relisted", "deleted"}
    assert (done.json["candidates"], done.json["bytes"]) == ([], 0)
    assert done.json["kept"]["of a recent run"] == 9  # 4 artifacts, 4 shards, the run
    age(store, 8 * 86_400)
    done = marin("gc", "--json")
    assert done.json["bytes"] > 1000
    assert done.json["kept"] == {"made what is about to go": 1}  # the run, until its results are gone
    assert {each["artifact"] for each in done.json["candidates"] if "artifact" in each} == {
        step["artifact"] for step in ran.json["steps"]
    }
    text = marin("gc")
    assert text.out.splitlines()[0].endswith("that nothing needs")
    assert "to free it: marin gc --apply" in text.err
    assert files(store) == before
    assert marin("gc", "--days", "9", "--json").json["candidates"] == []
    assert "marin gc --apply --days 2 --grace 60" in marin("gc", "--days", "2", "--grace", "60").err
    assert marin("gc", "--keep-runs", ran.json["run"][:-2], "--json").json["candidates"] == []


def test_gc_apply_unlists_first_and_deletes_after_the_grace(marin, ran, store):
    age(store, 8 * 86_400)
    done = marin("gc", "--apply", "--json").json
    assert (done["applied"], done["unlisted"], done["deleted"]["files"]) == (True, 8, 0)
    assert marin("ls", "--json").json["artifacts"] == []
    assert next(store.rglob("model.bin")).exists()
    done = marin("gc", "--apply", "--json").json
    assert done["kept"]["unlisted, waits for its grace period"] == 8
    assert {each["reason"] for each in done["candidates"]} == {"unlisted, waits for its grace period"}
    age(store / "unlisted", 25 * 3600)
    done = marin("gc", "--apply")
    assert "deleted" in done.err
    assert {path.split("/")[0] for path in files(store)} - KEPT_FOR_EVER == {"store.json"}
    assert not (store / "gc").exists()
    assert not (store / "unlisted").exists()
    assert marin("gc", "--json").json["candidates"] == []


def test_gc_keeps_what_is_pinned_with_all_that_it_was_made_from(marin, ran, store):
    marin("pin", "score")
    age(store, 8 * 86_400)
    age(store / "unlisted", 0)
    for _ in range(2):
        marin("gc", "--apply")
        age(store / "unlisted", 25 * 3600)
    assert {each["step"] for each in marin("ls", "--json").json["artifacts"]} == {"numbers", "learn", "score"}
    assert marin("verify", "--deep").code == 0
    assert not list(store.glob("shards/*/*/*"))  # `numbers` counted its shards, and names none of them
    assert marin("status").code == 0  # the run that made them, with its events


def test_run_within_the_grace_takes_back_what_gc_has_unlisted(marin, ran, store):
    age(store, 8 * 86_400)
    marin("gc", "--apply")
    again = marin(*RUN, "--json").json
    assert {step["state"] for step in again["steps"]} == {"cached"}
    assert [step["digest"] for step in again["steps"]] == [step["digest"] for step in ran.json["steps"]]
    age(store / "unlisted", 25 * 3600)
    marin("gc", "--apply")
    assert marin("verify", "--deep").code == 0
    assert len(marin("ls", "--json").json["artifacts"]) == 4


def test_pin_takes_back_what_gc_has_unlisted_and_says_when_it_is_too_late(marin, ran, store):
    age(store, 8 * 86_400)
    marin("gc", "--apply")
    assert marin("pin", "learn").code == 0
    assert [each["step"] for each in marin("ls", "--json").json["artifacts"]] == ["learn"]
    age(store / "unlisted", 25 * 3600)
    done = marin("gc", "--apply", "--json").json
    assert done["kept"] == {"pinned": 1, "needed by what is kept": 2}  # `numbers`, and the run
    assert marin("pin", "score").code == 2
    assert marin("verify", "--deep").code == 0


def test_gc_refuses_records_that_it_cannot_understand(marin, ran, store):
    age(store, 8 * 86_400)
    marin("pin", "score", "--name", "mine")
    pin = store / "pins" / "mine.json"
    pin.write_text("{")
    refused = marin("gc", "--apply")
    assert refused.code == 3
    assert "marin unpin mine" in refused.err
    assert marin("unpin", "mine").code == 0
    newer = next(store.glob("artifacts/*/*/manifest.json"))
    newer.write_bytes(newer.read_bytes().replace(b'\n "schema": 1', b'\n "schema": 2'))
    refused = marin("gc", "--apply")
    assert refused.code == 3
    assert "hint: upgrade marin" in refused.err


def test_gc_leaves_the_folder_of_a_torn_manifest_alone(marin, ran, store):
    torn = artifact(ran, 1) / "manifest.json"
    torn.write_bytes(torn.read_bytes()[:-20])
    age(store, 8 * 86_400)
    for _ in range(2):
        marin("gc", "--apply")
        age(store / "unlisted", 25 * 3600)
    folder = str(artifact(ran, 1).relative_to(store))
    left = {path for path in files(store) if path.split("/")[0] not in KEPT_FOR_EVER}
    assert left == {"store.json", *(f"{folder}/{path}" for path in files(artifact(ran, 1)))}
    assert next(artifact(ran, 1).rglob("model.bin")).exists()


def test_gc_waits_for_nobody_who_is_certainly_gone(marin, ran, store):
    """A collector that was killed leaves its lease; the next takes over, and sweeps up."""
    age(store, 8 * 86_400)
    folder = store / "gc"
    began = time.monotonic()
    fs.create(str(folder / "leases" / "1.json"), b"{")
    assert marin("gc", "--apply").code == 0
    assert time.monotonic() - began < 30
    assert not folder.exists()
