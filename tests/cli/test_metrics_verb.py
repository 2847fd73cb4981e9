"""`marin metrics`: table, JSON, and files of other tools, read back with what those tools read them with."""

import json
import struct
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest


def test_metrics_are_a_row_a_report_with_their_step(marin, ran):
    done = marin("metrics", "--step", "learn/small")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[:2] == ["learn/small", "step    loss   tokens"]
    assert lines[2].split() == ["1", "7.273", "1,000"]
    assert len(lines) == 202


def test_metrics_json_has_every_point_of_every_step(marin, ran):
    found = marin("metrics", "--json").json
    assert found["run"] == ran.json["run"]
    points = {step["name"]: step["metrics"] for step in found["steps"]}
    assert points.keys() == {"learn/small", "score"}
    assert [point["step"] for point in points["learn/small"]] == list(range(1, 201))
    assert points["learn/small"][-1]["values"] == {"tokens": 200_000, "loss": pytest.approx(8 / 21)}
    assert points["score"][0]["values"] == {"bits_per_byte": 1.25}
    assert points["score"][0]["time"].startswith("20")


def scalars(folder: Path) -> list[tuple[int, str, float, float]]:
    """Return step, tag, value and seconds of each scalar in an event file, by tensorboardX's own messages."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found: list[tuple[int, str, float, float]] = []
    (file,) = folder.iterdir()
    data = file.read_bytes()
    while data:  # TFRecord: length, its checksum, the message, its checksum
        (length,) = struct.unpack_from("<Q", data)
        event: Any = event_pb2.Event.FromString(data[12 : 12 + length])
        found += [(event.step, each.tag, each.simple_value, event.wall_time) for each in event.summary.value]
        data = data[16 + length :]
    return found


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_metrics_to_tensorboard_are_what_its_reader_finds(marin, ran, tmp_path, follow):
    pytest.importorskip("tensorboardX")
    done = marin("metrics", "--to", "tensorboard", str(tmp_path / "boards"), *follow, "--json")
    assert done.code == 0
    run = ran.json["run"]
    assert done.json["points"] == 201
    told = marin("metrics", "--json", "--step", "learn/small").json["steps"][0]["metrics"]
    found = scalars(tmp_path / "boards" / run / "learn_small")
    assert [(step, value) for step, tag, value, _ in found if tag == "loss"] == [
        (point["step"], pytest.approx(point["values"]["loss"])) for point in told
    ]
    assert {tag for _, tag, _, _ in found} == {"loss", "tokens"}
    assert scalars(tmp_path / "boards" / run / "score")[0][1:3] == ("bits_per_byte", 1.25)


def test_metrics_exported_twice_are_refused_with_the_folder(marin, ran, tmp_path):
    pytest.importorskip("tensorboardX")
    assert marin("metrics", "--to", "tensorboard", str(tmp_path)).code == 0
    again = marin("metrics", "--to", "tensorboard", str(tmp_path))
    assert again.code == 2
    assert "was exported there before" in again.err
    assert "hint: delete that folder" in again.err


def test_metrics_without_the_extra_say_what_to_install(marin, ran, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    done = marin("metrics", "--to", "tensorboard", str(tmp_path))
    assert done.code == 2
    assert "pip install 'marin[tensorboard]'" in done.err
    assert list(tmp_path.glob("2*")) == []


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a wandb file: blocks of 32 KiB as in LevelDB's log, after a header of 7 bytes."""
    position, pending = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        length, kind = struct.unpack_from("<HB", data, position + 4)
        if left < 7 or kind == 0:
            position += left
            continue
        pending += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield pending
            pending = b""


@pytest.mark.slow
def test_metrics_to_wandb_are_an_offline_run_of_the_same_numbers(marin, ran, tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    assert marin("metrics", "--step", "learn/small", "--to", "wandb", str(tmp_path)).code == 0
    (file,) = tmp_path.glob("*/wandb/offline-run-*/*.wandb")
    losses = []
    for data in records(file.read_bytes()):
        history = wandb_internal_pb2.Record.FromString(data).history
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
        if "loss" in items:
            losses.append((items["step"], items["loss"], items["_timestamp"]))
    told = marin("metrics", "--json", "--step", "learn/small").json["steps"][0]["metrics"]
    assert [(step, loss) for step, loss, _ in losses] == [
        (point["step"], pytest.approx(point["values"]["loss"])) for point in told
    ]
    assert [seconds for _, _, seconds in losses] == [
        pytest.approx(datetime.fromisoformat(point["time"]).timestamp()) for point in told
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step", "learn"], "has no step `learn`"),
        (["--follow"], "`--follow` needs somewhere to write to"),
        (["--to", "excel", "x"], "'excel' is not one of 'tensorboard', 'wandb'"),
    ],
)
def test_metrics_asked_for_what_there_is_not_say_so(marin, ran, arguments, said):
    done = marin("metrics", *arguments)
    assert done.code == 2
    assert said in done.err
