"""A few steps of a training, recorded: where the file is, what is in it, and that the result is the same."""

import json
from pathlib import Path

import pytest

import marin
from marin import AdamW, Decoder, Profile, Records, Shuffle, Tokenize, Train, TrainTokenizer
from marin.base.errors import ConfigurationError

DOCUMENTS = Records(texts=tuple(f"the {number} of {number * 7 % 11} and some more" for number in range(60)))
TOKENIZER = TrainTokenizer(documents=DOCUMENTS, vocab_size=270)
DATA = Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=TOKENIZER), context=16, seed=0)


def trained(folder: Path, profile: Profile | None) -> marin.Checkpoint:
    model = Decoder(layers=1, width=16, heads=2)
    step = Train(data=DATA, model=model, optimizer=AdamW(lr=0.01), tokens=6 * 4 * 16, batch=4, profile=profile)
    return marin.run(step, store=folder, backend="inline")


@pytest.mark.parametrize(("first", "steps"), [(2, 3), (4, 50)])
def test_profile_has_the_steps_that_were_asked_for_and_changes_no_bit(tmp_path: Path, first: int, steps: int) -> None:
    wanted = Profile(url=str(tmp_path / "traces"), first_step=first, num_steps=steps, memory=True)
    assert trained(tmp_path / "a", wanted).digest == trained(tmp_path / "b", None).digest
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name == f"steps-{first:08d}-rank-0.trace.json"
    events = json.loads(trace.read_text())["traceEvents"]
    updates = [event for event in events if str(event.get("name", "")).startswith("Optimizer.step#AdamW")]
    assert len(updates) == min(steps, 6 - first)
    assert any(event.get("name") == "[memory]" for event in events)


def test_profile_of_steps_or_ranks_that_the_run_does_not_have_writes_nothing(tmp_path: Path) -> None:
    trained(tmp_path / "a", Profile(url=str(tmp_path / "traces"), first_step=100))
    trained(tmp_path / "b", Profile(url=str(tmp_path / "traces"), first_step=1, ranks=[1]))
    assert not (tmp_path / "traces").exists()


def test_profile_with_a_relative_folder_means_the_one_where_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Profile(url="traces").url == str(tmp_path / "traces")
    assert Profile(url="s3://bucket/traces").url == "s3://bucket/traces"


@pytest.mark.parametrize("wrong", [{"first_step": -1}, {"num_steps": 0}, {"num_steps": 101}])
def test_profile_of_no_steps_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        Profile(url="traces", **wrong)
