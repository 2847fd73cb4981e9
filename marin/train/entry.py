"""Where a gang enters training: one function for a rank, one for the meeting point, two for the results.

`train_rank` checks everything that can be checked before a rank waits for another or touches a device for long.
"""

import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch._dynamo  # the first optimiser imports it, for 1 s: here a fork server does, once for all ranks
from torch import Tensor

from marin.base.errors import ConfigurationError, DataError, Interrupted
from marin.base.json import Json
from marin.base.units import format_size
from marin.data.artifact_tokenizer import check_tokenizer, tokenizer_bytes
from marin.data.loader import SequenceData
from marin.data.token_sizes import token_sizes
from marin.data.tokenizer import load_tokenizer
from marin.graph.artifact import Checkpoint, Sequences
from marin.graph.context import Member
from marin.graph.files import FileRef, Output
from marin.model.config import Decoder
from marin.model.init import build
from marin.train.adapters import Adapters
from marin.train.checkpoint import Checkpoints
from marin.train.config import TrainConfig, warmup_error
from marin.train.feed import SequenceSource
from marin.train.looks import Watched
from marin.train.loop import Loop, Outcome
from marin.train.memory import check_fits, estimate
from marin.train.parallel import Axes
from marin.train.ranks import device_of, join, memory_of, open_rendezvous
from marin.train.record import write_result
from marin.train.samples import Speaker
from marin.train.start import (
    Start,
    config_of,
    end_ids,
    matched,
    read_decoder,
    read_start,
)
from marin.train.state import TrainingState
from marin.train.validation import HeldOut

__all__ = [
    "files_of",
    "open_decoder",
    "open_rendezvous",
    "record_of",
    "resolved",
    "tokens_of",
    "train_rank",
    "train_source",
]

log = logging.getLogger(__name__)


def train_rank(
    member: Member,
    *,
    config: TrainConfig,
    data: Sequences,
    checkpoints: str,
    output: Output,
    init: Checkpoint | None = None,
    validation: Sequences | None = None,
    stop_data: Sequences | None = None,
    until: int | None = None,
) -> dict[str, Json]:
    """Train as one rank of a gang, from the newest checkpoint if there is one; rank 0 writes the result.

    `init`: a checkpoint of another run or model, from which the first step starts. `validation`: held-out sequences,
    whose loss goes to the metrics. `stop_data`: such as decide whether the run goes on, where `config.stop` says so.
    `until`: end after this step, with a checkpoint and no result.
    Returns `{"files": [...], "record": {...}}` from rank 0, or `{"stopped": step}` after a stop that was asked for.
    """
    ready = resolved(config, data, world_size=member.world_size, init=init)
    check_validation(validation, data)
    check_validation(stop_data, data, field="stop_data")
    assert ready.model.context is not None
    source = SequenceData(data.shards, ready.model.context)
    result = train_source(
        member,
        config=ready,
        source=source,
        checkpoints=checkpoints,
        output=output,
        eos_id=data.meta.get("eos_id"),
        start=read_start(init, carry_training=ready.carry == "training") if init else None,
        watched=Watched(
            held_out=read_held_out(validation, ready) if validation else None,
            stop_data=read_held_out(stop_data, ready) if stop_data else None,
            speaker=speaker_of(ready, data, init) if ready.prompts else None,
        ),
        until=until,
    )
    if result.get("files"):
        copied = [file for file in data.contents.files if file.path == "tokenizer.json"]
        for file in copied:
            output.write(file.path, data.contents.reader.read(file))
        result["files"] = [asdict(file) for file in output.files]
    return result


def train_source(
    member: Member,
    *,
    config: TrainConfig,
    source: SequenceSource,
    checkpoints: str,
    output: Output,
    eos_id: int | None = None,
    start: Start | None = None,
    watched: Watched | None = None,
    until: int | None = None,
) -> dict[str, Json]:
    """Train on any numbered sequences; `config` must be resolved. Returns what `train_rank` returns."""
    check_source(config, source)
    watched = watched or Watched()
    for looked_at in (watched.held_out, watched.stop_data):
        if looked_at is not None:
            check_source(config, looked_at.source)
    device = device_of(member)
    needed = estimate(config, world_size=member.world_size, device_type=device.type)
    log.info("a rank needs about %s of memory, %s of it lasting", *map(format_size, (needed.total, needed.lasting)))
    check_fits(needed, memory_of(device), where=f"{device}")
    ranks = join(member, device, config.parallel)
    state = TrainingState(config, source, device, start, ranks.layout)
    kept = Checkpoints(checkpoints, keep=config.keep)
    loop = Loop(state, source, kept, member=member, ranks=ranks, watched=watched, until=until)
    loop.resume()
    outcome = loop.run()
    if outcome is Outcome.STOPPED:
        ranks.close()
        return {"stopped": loop.saved_step}
    if until is not None:
        ranks.close()
        return {"files": [], "record": {}}
    summary: dict[str, Json] = {}

    def write(tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        member.beat("write", state.step)
        summary.update(write_result(state, tensors, output, eos_id=eos_id))

    if state.layout.divides:
        state.hand_over(write)
        ranks.close()
    else:  # nobody need wait for rank 0
        ranks.close()
        state.hand_over(write)
    return {"files": [asdict(file) for file in output.files] if member.rank == 0 else [], "record": summary}


def check_source(config: TrainConfig, source: SequenceSource) -> None:
    """Raise ConfigurationError if documents are to be kept apart and the data do not say where they begin."""
    if config.document_mask and "segments" not in inspect.signature(source.batch).parameters:
        raise ConfigurationError(
            "the data do not say where documents begin",
            where="Train.document_mask",
            hint="set document_mask=False, or pack the data so that their index is kept",
        )


def check_validation(
    validation: Sequences | None, data: Sequences, *, step: str = "Train", field: str = "validation"
) -> None:
    """Raise ConfigurationError or DataError unless held-out sequences are packed and tokenized as the data are."""
    if validation is None:
        return
    for name in ("context", "vocab_size"):
        if validation.meta[name] != data.meta[name]:
            raise ConfigurationError(
                f"the held-out sequences have `{name}` {validation.meta[name]}, the data {data.meta[name]}",
                where=f"{step}.{field}",
                hint="tokenize and pack both with the same steps",
            )
    check_tokenizer(data, validation, where=f"{step}.{field}", of="the held-out sequences'")


def read_held_out(validation: Sequences, config: TrainConfig) -> HeldOut:
    """Return held-out sequences, with the bytes of each token where their tokenizer is among the files."""
    assert config.model.context is not None
    source = SequenceData(validation.shards, config.model.context)
    tokenizer = tokenizer_bytes(validation)
    sizes = token_sizes(load_tokenizer(tokenizer), config.model.vocabulary) if tokenizer else None
    return HeldOut(source, sizes)


def speaker_of(config: TrainConfig, data: Sequences, init: Checkpoint | None) -> Speaker:
    """Return what continues the configuration's prompts; raises DataError where the data have no tokenizer."""
    tokenizer, eos = tokenizer_bytes(data), data.meta.get("eos_id")
    if tokenizer is None:
        raise DataError(
            "the data have no tokenizer with which prompts could be read",
            where="Train.prompts",
            hint="leave `prompts` out, or tokenize with a step of marin",
        )
    kept = config_of(init) if init is not None and config.keep_config else {}
    begins = () if eos is None or kept.get("bos_token_id") is not None else (eos,)
    ends = set(end_ids(kept.get("eos_token_id"))) | set(end_ids(eos))
    return Speaker(
        load_tokenizer(tokenizer), config.prompts, max_tokens=config.sample_tokens, begins=begins, ends=sorted(ends)
    )


def open_decoder(init: Checkpoint) -> Decoder:
    """Return the shape of a checkpoint's model, its context left open, as rows may be shorter."""
    return read_decoder(init).model_copy(update={"context": None})


def tokens_of(data: Sequences, *, epochs: float) -> int:
    """Return the positions of so many passes over the data."""
    context: int = data.meta["context"]
    return math.ceil(epochs * len(SequenceData(data.shards, context))) * context


def resolved(
    config: TrainConfig, data: Sequences, *, world_size: int | None, init: Checkpoint | None = None, step: str = "Train"
) -> TrainConfig:
    """Return the configuration with what the data decide filled in; raises ConfigurationError if they disagree.

    `world_size` None: the ranks are not known yet. With an initial checkpoint its model must be the one to train, and
    its tokenizer that of the data. `step` is whose fields are named.
    """
    context = data.meta["context"]
    if data.meta.get("num_target_tokens") == 0:
        raise DataError(
            "no token of the data is a target: there is nothing to learn",
            where=f"{step}.data",
            hint="look at the loss masks with `marin cat`, or at the documents that are left",
        )
    model = config.model
    if init is not None:
        model = matched(model, read_decoder(init), context=context, step=step)
        check_tokenizer(data, init, where=f"{step}.init", of="the initial checkpoint's")
    model = model.with_data(vocab_size=data.meta["vocab_size"], context=context)
    config.parallel.check_model(model)
    axes = config.parallel.axes(world_size) if world_size else Axes()
    readers = axes.replicate * axes.shard
    if config.smallest_batch < readers:
        raise ConfigurationError(
            f"a batch of {config.smallest_batch} sequences cannot feed {readers} ranks",
            where="TrainConfig.ramp.start" if config.ramp else "TrainConfig.batch",
            hint=f"give `batch` at least {readers}, or use fewer ranks",
        )
    if config.schedule.warmup_steps >= config.num_steps(context):
        raise warmup_error(config, context)
    if config.lora is not None:
        Adapters(build(model, torch.device("meta")), config.lora, seed=config.seed)  # refuses unknown targets
    return config.model_copy(update={"model": model})


def files_of(results: Sequence[Any]) -> list[FileRef]:  # Any: the JSON of `train_rank`
    """Return the files that the ranks of a gang wrote, to be adopted; raises Interrupted after a stop."""
    for result in results:
        if "stopped" in result:
            raise Interrupted(
                f"training stopped at step {result['stopped']}, after a checkpoint",
                hint="run the same command again to continue there",
            )
    return [FileRef(**file) for result in results for file in result["files"]]


def record_of(results: Sequence[Any]) -> dict[str, Json]:  # Any: the JSON of `train_rank`
    """Return the summary that rank 0 gave: steps, tokens, parameters, loss."""
    record: dict[str, Json] = results[0]["record"]
    return record
