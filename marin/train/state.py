"""Everything that a training run is at one moment, as tensors and JSON.

Invariant: a state that was saved and restored continues bit by bit. The only cursor is the step, since the order of
data is a pure function of it; whatever else the data's order depends on is saved beside it and compared.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from pydantic import BaseModel
from torch import Tensor

from marin.base.config import ElideIf, placement_fields
from marin.base.errors import CheckpointError
from marin.base.json import Json
from marin.model.decoder import LanguageModel
from marin.model.hub import own_weights
from marin.model.init import initial, outline
from marin.train.adapters import Adapters
from marin.train.config import TrainConfig
from marin.train.divide import divide, forget_whole, local_weights
from marin.train.early_stop import Look, reason_to_stop
from marin.train.ema import WeightAverage
from marin.train.exchange import Exchange, Piece
from marin.train.feed import SequenceSource
from marin.train.gradients import DividedGradients, Gradients, StepGradients
from marin.train.layout import WHOLE, Layout
from marin.train.optimizer import ParameterUpdate
from marin.train.order import VERSION, mix_audit
from marin.train.start import Start


class TrainingState:
    """Model, optimiser, cursor and the curves so far; starts at step 0 with weights made from the seed, or given."""

    def __init__(
        self,
        config: TrainConfig,
        source: SequenceSource,
        device: torch.device,
        start: Start | None = None,
        layout: Layout = WHOLE,
    ) -> None:
        """`layout`: what this rank holds. Where it divides, every rank must call, and join a process group before."""
        assert config.model.context is not None
        self.config = config
        self.device = device
        self.plan = config.steps(config.model.context)
        self.num_steps = self.plan.num_steps
        self.step = 0
        self.tokens = 0
        """Target tokens so far."""
        self.audit = 0
        """Running hash of every sample of every step."""
        self.events: list[dict[str, Json]] = []
        """Steps that were skipped or rolled back."""
        self.looks: list[Look] = []
        """What was seen where the run could have ended."""
        self._passed_over = 0
        """Sequences that a return to a checkpoint left out."""
        self.layout = layout
        self.model: LanguageModel = outline(config.model)
        self.shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        """Of whole parameters that are updated."""
        self.weights: dict[str, Tensor]
        """What this rank holds of them, as plain tensors by name; nothing else is saved, as nothing else changes."""
        self._exchange: Exchange | None = None
        if config.recompute == "block":
            self.model.recompute_layers()
        self._place()
        self._fill(None if start is None else own_weights(self.model, start.weights))
        self.base_config: Mapping[str, Any] = start.config if start else {}
        self.adapters = Adapters(self.model, config.lora, seed=config.seed) if config.lora else None
        if self.adapters is not None:
            self.adapters.initialise()
            self.weights = dict(self.adapters.parameters())
            self.shapes = {name: weight.shape for name, weight in self.weights.items()}
        self.gradients = self._gradients()
        self.update = ParameterUpdate(self.weights, config.optimizer, layout, self.shapes, self._exchange)
        self.average = WeightAverage(self.weights, config.ema) if config.ema else None
        self.losses = torch.zeros(self.num_steps, dtype=torch.float32, device=device)
        self.norms = torch.zeros(self.num_steps, dtype=torch.float32, device=device)
        self._first, self._earlier_updates = 0, 0
        self._order = self._begin(source, start)

    def _place(self) -> None:
        """Give the model undefined memory on the device, all of it or this rank's pieces."""
        if self.layout.divides:
            self._exchange = Exchange(self.layout)
            divide(self.model, self.config, self.layout, self.device)
            self.weights = local_weights(self.model)
        else:
            self.model.to_empty(device=self.device)
            self.weights = dict(self.model.named_parameters())

    def _begin(self, source: SequenceSource, start: Start | None) -> dict[str, Json]:
        """Take over where another run left the data and the optimiser; return what the order of data depends on."""
        assert self.config.model.context is not None
        order: dict[str, Json] = {
            "dataset": source.digest,
            "sequences": len(source),
            "context": self.config.model.context,
            "batch": self.config.batch,
            "seed": self.config.seed,
            "order_version": VERSION,
        }
        if start is None:
            return order
        self._first = start.position(order)
        order |= {"init": start.digest, "first": self._first}
        if start.carried is not None:
            self._earlier_updates = start.carried.updates
            self.update.load(self._pieces(start.carried.optimizer), self.updates)
        return order

    def _gradients(self) -> StepGradients:
        if not self.layout.divides:
            return Gradients(parameter for parameter in self.model.parameters() if parameter.requires_grad)
        each = self.config.parallel.add_gradients == "micro_batch"
        return DividedGradients(self.model, self.weights, self.layout, each=each)

    @torch.no_grad()
    def _fill(self, given: Mapping[str, Tensor] | None) -> None:
        """Take over this rank's pieces of whole weights, or of initial ones made from the seed, one at a time."""
        for name, weight in self.weights.items():
            whole = (
                initial(name, self.shapes[name], self.config.model, self.config.seed) if given is None else given[name]
            )
            weight.copy_(self.layout.piece(name, whole))
        self._forget_whole()

    def _pieces(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's pieces of whole tensors of the optimiser or the average."""
        return {name: self.layout.piece(name, tensor) for name, tensor in tensors.items()}

    def _forget_whole(self) -> None:
        if self.layout.divides:
            forget_whole(self.model)

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends before its last step, in words; None while it does not."""
        return reason_to_stop(self.config.stop, self.looks) if self.config.stop else None

    @property
    def ended(self) -> bool:
        """Whether no step is left to do."""
        return self.step == self.num_steps or self.stop_reason is not None

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Put the averages, where they are kept, in the weights' place; then let go of what the look has gathered."""
        with self.average.in_place() if self.average else nullcontext():
            yield
        self._forget_whole()

    @property
    def offset(self) -> int:
        """Stream position at which step 0 would begin, given what was passed over."""
        return self._first + self._passed_over

    @property
    def saved_bytes(self) -> int:
        """About how much `tensors` holds: weights, two moments, and their average."""
        weights = sum(shape.numel() for shape in self.shapes.values())
        return weights * torch.float32.itemsize * (4 if self.average else 3)

    @property
    def updates(self) -> int:
        """Optimiser steps so far, those before the initial checkpoint included."""
        skipped = sum(event["action"] == "skip" for event in self.events)
        return self._earlier_updates + self.step - skipped

    def advance(self, *, num_targets: int, audit: int) -> None:
        """Move the cursor past one step."""
        self.audit = mix_audit(self.audit, audit)
        self.tokens += num_targets
        self.step += 1

    def pass_over(self, step: int) -> None:
        """Leave out the sequences from the cursor to the end of `step`, after a return from there; recorded."""
        begin = self.offset + self.plan.sequences(self.step)
        end = self.offset + self.plan.sequences(step + 1)
        self._passed_over += end - begin
        self.events.append({"step": step, "action": "rollback", "to": self.step, "sequences": [begin, end]})

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return all tensors by file and name; they share memory with the state.

        In a divided state each stands for a whole tensor, which `detach` makes on rank 0 inside `hand_over`.
        """
        curves = {"curve.loss": self.losses, "curve.grad_norm": self.norms}
        files = {"model": self.weights, "optimizer": self.update.state()}
        if self.average is not None:
            files["ema"] = self.average.state()
        if self._exchange is not None:
            files = self._stand_ins(files, self._exchange)
        return {**files, "optimizer": {**files["optimizer"], **curves}}

    def _stand_ins(self, files: Mapping[str, Mapping[str, Tensor]], exchange: Exchange) -> dict[str, dict[str, Tensor]]:
        found: dict[str, dict[str, Tensor]] = {file: {} for file in files}
        number = 0
        for file, members in files.items():
            for name, local in members.items():
                owner = name if name in self.shapes else name.partition(".")[2]
                piece = Piece(exchange, number, owner, local, self.shapes[owner])
                found[file][name] = cast(Tensor, piece)  # it has what `write_tensors` asks of a tensor
                number += 1
        return found

    def hand_over(self, write: Callable[[Mapping[str, Mapping[str, Tensor]]], None]) -> None:
        """Call `write` with all tensors on rank 0, which may ask for each whole one; every rank must call."""
        tensors = self.tensors()
        if self._exchange is None:
            if self.layout.rank == 0:
                write(tensors)
        elif self.layout.rank == 0:
            self._exchange.lead(lambda: write(tensors))
        else:
            stand_ins: list[object] = [tensor for members in tensors.values() for tensor in members.values()]
            self._exchange.follow([piece for piece in stand_ins if isinstance(piece, Piece)])

    def record(self) -> dict[str, Json]:
        """Return the JSON part: cursor, what the order depends on, configuration, versions."""
        looks: list[Json] = [list(look) for look in self.looks]
        return {
            **({"looks": looks} if self.config.stop else {}),
            "step": self.step,
            "position": self.offset + self.plan.sequences(self.step),
            "tokens": self.tokens,
            "audit": f"{self.audit:016x}",
            "order": self._order,
            "config": science(self.config),
            "events": list(self.events),
            "passed_over": self._passed_over,
            "updates": self.updates,
            "versions": {"torch": str(torch.__version__)},
        }

    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]], record: Mapping[str, Any], *, where: str) -> None:
        """Become what was saved; raises CheckpointError naming the first difference if that was another run."""
        compare(record["order"], self._order, where=where, what="data")
        compare(record["config"], science(self.config), where=where, what="configuration")
        if self.adapters is not None:
            self.adapters.load(tensors["model"])
        else:
            self._fill(own_weights(self.model, tensors["model"]))
        rest = dict(tensors["optimizer"])
        with torch.no_grad():
            self.losses.copy_(rest.pop("curve.loss"))
            self.norms.copy_(rest.pop("curve.grad_norm"))
        if self.average is not None:
            self.average.load(self._pieces(tensors.get("ema", {})))
        self.step, self.tokens, self.audit = record["step"], record["tokens"], int(record["audit"], 16)
        self.events, self._passed_over = list(record.get("events", [])), record.get("passed_over", 0)
        self.looks = [Look(*look) for look in record.get("looks", [])]
        self.update.load(self._pieces(rest), self.updates)

    def return_to(self, tensors: Mapping[str, Mapping[str, Tensor]], record: Mapping[str, Any], *, where: str) -> None:
        """Become what was saved, keep what has been recorded since, and pass over the samples since."""
        failed, events, passed_over = self.step, self.events, self._passed_over
        self.restore(tensors, record, where=where)
        self.events, self._passed_over = events, passed_over
        self.pass_over(failed)


def science(config: TrainConfig) -> dict[str, Json]:
    """Return the configuration without what merely says where and how fast.

    A field that is marked `ElideIf` is left out as it is of recipes, so that a configuration can grow.
    """
    return _counted(config, config.model_dump(mode="json"))


def _counted(config: BaseModel, dumped: Mapping[str, Any]) -> dict[str, Json]:  # Any: JSON
    kept: dict[str, Json] = {}
    placed = placement_fields(type(config))
    for name, field in type(config).__pydantic_fields__.items():
        value = getattr(config, name)
        literals = [mark.literal for mark in field.metadata if isinstance(mark, ElideIf)]
        if name in placed or any(value == literal and type(value) is type(literal) for literal in literals):
            continue
        kept[name] = _counted(value, dumped[name]) if isinstance(value, BaseModel) else dumped[name]
    return kept


def compare(saved: Mapping[str, Any], own: Mapping[str, Any], *, where: str, what: str, path: str = "") -> None:
    """Raise CheckpointError with both values at the first path where two JSON records differ."""
    for name in sorted(saved.keys() | own.keys()):
        before, now = saved.get(name), own.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            compare(before, now, where=where, what=what, path=f"{path}{name}.")
        elif before != now:
            raise CheckpointError(
                f"the checkpoint was written with other {what}: `{path}{name}` was {before!r}, now it is {now!r}",
                where=where,
                hint=f"put `{path}{name}` back, or use another checkpoints folder",
            )
