"""Several gloo ranks, started as torchrun starts them, against one: same curve, same weights, killed or not."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from marin import fs
from marin.base.errors import ConfigurationError, InputError
from marin.data.token_files import write_array
from marin.graph.artifact import Sequences
from marin.graph.files import Shard
from marin.model.config import Decoder
from marin.model.weights import read_tensors
from marin.train.config import AdamW, Cosine, Muon, TrainConfig, WarmupStableDecay
from marin.train.early_stop import EarlyStop
from marin.train.entry import open_rendezvous, resolved
from marin.train.folder import open_folder, write_folder
from marin.train.lora import Lora

TOLERANCE = 2e-6
STEPS = 12
CONTEXT = 16
ADAM = TrainConfig(
    model=Decoder(layers=2, width=16, heads=2),
    optimizer=AdamW(lr=0.003),
    schedule=Cosine(warmup_steps=2),
    tokens=STEPS * 7 * CONTEXT,
    batch=7,
    seed=5,
    checkpoint_steps=3,
)
MUON = ADAM.model_copy(
    update={"optimizer": Muon(lr=0.003, others=AdamW(lr=0.003)), "schedule": WarmupStableDecay(warmup_steps=2)}
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sequences: two shards, the last row padded."""
    root = tmp_path_factory.mktemp("sequences")
    noise, shards = np.random.default_rng(0), []
    for number, (rows, padded_row, padding) in enumerate([(30, None, 0), (20, 19, 5)]):
        output = fs.FolderOutput(str(root / f"shard-{number}"))
        array = noise.integers(0, 50, (rows, CONTEXT + 1)).astype("<u2")
        write_array(output, "tokens.npy", [array], array.shape, array.dtype)
        value = {
            "context": CONTEXT,
            "rows": rows,
            "targets": rows * CONTEXT - padding,
            "padded_row": padded_row,
            "padding": padding,
        }
        shards.append(Shard(f"{number}", f"digest-{number}", output.files, value))
    own = fs.FolderOutput(str(root / "own"))
    own.write("tokenizer.json", b"{}")
    sequences = Sequences.write(own, shards=shards, meta={"context": CONTEXT, "vocab_size": 50, "eos_id": 0})
    write_folder(sequences, str(root / "folder"))
    return root / "folder"


def start(folder: Path, data: Path, config: TrainConfig, world_size: int) -> list[subprocess.Popen[bytes]]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config.model_dump_json())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "marin.train", "--data", str(data), "--config", str(folder / "config.json")]
    command += ["--checkpoints", str(folder / "checkpoints"), "--output", str(folder / "output")]
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank), "WORLD_SIZE": str(world_size)}, stderr=subprocess.PIPE
        )
        for rank in range(world_size)
    ]


def finish(processes: list[subprocess.Popen[bytes]]) -> list[str]:
    texts = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)
    return texts


def wait_for_step(process: subprocess.Popen[bytes], step: int) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"step {step} ".encode()):
            return
    pytest.fail("the rank ended early")


def losses(folder: Path) -> list[float]:
    return [point["loss"] for point in json.loads((folder / "output" / "training.json").read_text())["curve"]]


@pytest.mark.parametrize(("config", "worlds"), [(ADAM, (2, 3)), (MUON, (2,))], ids=["adamw", "muon"])
def test_several_ranks_learn_what_one_learns(
    tmp_path: Path, data: Path, config: TrainConfig, worlds: tuple[int, ...]
) -> None:
    runs = {world_size: start(tmp_path / str(world_size), data, config, world_size) for world_size in (1, *worlds)}
    texts = {world_size: finish(processes) for world_size, processes in runs.items()}
    single = losses(tmp_path / "1")
    assert len(single) == STEPS
    weights = read_tensors((tmp_path / "1/output/model.safetensors").read_bytes(), where="1")
    for world_size in worlds:
        folder = tmp_path / str(world_size)
        assert losses(folder) == pytest.approx(single, rel=TOLERANCE)
        others = read_tensors((folder / "output/model.safetensors").read_bytes(), where="n")
        assert all(torch.allclose(weights[name], others[name], rtol=1e-3, atol=1e-5) for name in weights)
        audits = [json.loads((tmp_path / n / "output/training.json").read_text())["audit"] for n in ("1", folder.name)]
        assert audits[0] == audits[1]
        assert "loss" in texts[world_size][0]
        assert "loss" not in texts[world_size][1]
    assert (tmp_path / "2/output/tokenizer.json").read_bytes() == b"{}"


@pytest.mark.slow  # tests/unit/train/test_adapters.py has dropout in micro-batches, test_looks.py the end
def test_two_ranks_with_adapters_drop_out_and_stop_as_one_does(tmp_path: Path, data: Path) -> None:
    """The second look cannot improve by so much, so the run ends there, on both ranks at once."""
    lora = Lora(rank=4, alpha=8, dropout=0.3)
    stop = EarlyStop(every=4, metric="training", patience=1, min_delta=9.0)
    config = ADAM.model_copy(update={"lora": lora, "stop": stop})
    runs = [start(tmp_path / str(world_size), data, config, world_size) for world_size in (1, 2)]
    for processes in runs:
        finish(processes)
    single, double = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert len(single) == len(double) == 8
    assert double == pytest.approx(single, rel=TOLERANCE)


def test_two_ranks_killed_in_the_middle_continue_to_the_same_bits(tmp_path: Path, data: Path) -> None:
    long = ADAM.model_copy(update={"tokens": 60 * 7 * CONTEXT, "checkpoint_steps": 10})
    undisturbed = start(tmp_path / "undisturbed", data, long, 2)
    killed = start(tmp_path / "killed", data, long, 2)
    wait_for_step(killed[0], 20)
    killed[1].send_signal(signal.SIGKILL)
    killed[0].communicate(timeout=60)
    assert killed[0].returncode != 0
    killed[1].communicate(timeout=60)
    assert not (tmp_path / "killed/output/training.json").exists()
    finish(start(tmp_path / "killed", data, long, 2))
    finish(undisturbed)
    for name in ("model.safetensors", "training.json", "config.json"):
        assert (tmp_path / "killed/output" / name).read_bytes() == (tmp_path / "undisturbed/output" / name).read_bytes()


def test_sigterm_to_one_of_two_ranks_stops_both_after_a_checkpoint(tmp_path: Path, data: Path) -> None:
    long = ADAM.model_copy(update={"tokens": 100_000 * 7 * CONTEXT, "checkpoint_steps": 10})
    processes = start(tmp_path, data, long, 2)
    wait_for_step(processes[0], 30)
    processes[1].send_signal(signal.SIGTERM)
    texts = [process.communicate(timeout=60)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [130, 130], texts
    assert all("training stopped at step" in text for text in texts)
    step = int(texts[0].split("stopped at step ")[1].split(",")[0])
    assert list((tmp_path / "checkpoints").glob(f"step-{step:08d}.*/MANIFEST.json"))


def test_command_with_wrong_input_says_what_and_exits_without_training(tmp_path: Path, data: Path) -> None:
    small = ADAM.model_copy(update={"model": Decoder(layers=2, width=16, heads=2, vocab_size=49)})
    (process,) = start(tmp_path, data, small, 1)
    text = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 2
    assert "the data have 50 token ids, the model has 49" in text
    assert "Traceback" not in text
    assert not (tmp_path / "checkpoints").exists()


def test_config_with_a_batch_smaller_than_the_ranks_is_refused(data: Path) -> None:
    with pytest.raises(ConfigurationError, match="a batch of 7 sequences cannot feed 8 ranks"):
        resolved(ADAM, open_folder(str(data)), world_size=8)
    assert resolved(ADAM, open_folder(str(data)), world_size=7).model.vocab_size == 50


def test_config_with_a_warmup_as_long_as_the_run_is_refused(data: Path) -> None:
    slow = ADAM.model_copy(update={"schedule": Cosine(warmup_steps=STEPS)})
    with pytest.raises(ConfigurationError, match="takes 12 steps, the whole run only 12"):
        resolved(slow, open_folder(str(data)), world_size=1)


def test_folder_without_sequences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no `sequences.json`"):
        open_folder(str(tmp_path))


def test_rendezvous_is_open_on_every_interface_and_names_no_host() -> None:
    meeting = open_rendezvous()
    host, _, port = meeting.address.rpartition(":")
    assert host == ""
    with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
        pass
