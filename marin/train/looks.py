"""What is looked at between two steps: held-out loss, samples, and whether the run ends early.

Invariant: a look changes no bit of weights, optimiser or cursor. Where an average of the weights is kept, it is what is
looked at, as it is what the run will leave.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from marin.graph.context import Member
from marin.train.early_stop import EarlyStop, Look
from marin.train.precision import autocast
from marin.train.ranks import Ranks
from marin.train.samples import Speaker
from marin.train.state import TrainingState
from marin.train.validation import HeldOut, Validation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watched:
    """What a run is looked at with."""

    held_out: HeldOut | None = None
    """Sequences whose loss goes to the metrics."""
    stop_data: HeldOut | None = None
    """Sequences whose loss decides whether the run goes on."""
    speaker: Speaker | None = None


class Looks:
    """The looks of one rank."""

    def __init__(
        self,
        watched: Watched,
        state: TrainingState,
        *,
        member: Member,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._member, self._ranks, self._clock = state, member, ranks, clock
        config = state.config
        self.score: float | None = None
        """The held-out loss after this step; None where it was not looked at, or is not a number."""
        self._speaker = watched.speaker
        self._validation = watched.held_out and self._opened(watched.held_out, config.validate_sequences)
        self._stopping = config.stop and watched.stop_data and self._opened(watched.stop_data, config.stop.sequences)

    def decide(self) -> None:
        """Look whether the run ends here, where that is asked for at this step; `state.ended` then says so."""
        state, stop = self._state, self._state.config.stop
        if stop is None or state.step % stop.every or state.step == state.num_steps:
            return
        loss = self._deciding_loss(stop)
        heard = self._ranks.share(f"look/{len(state.events)}/{state.step}", repr(loss))  # the same one on every rank
        state.looks.append(Look(state.step, None if heard == "None" else float(heard)))
        if self._ranks.rank == 0 and loss is not None:
            self._member.metric(step=state.step, tokens=state.tokens, stop_loss=loss)
        if state.stop_reason is not None:
            log.info("the run ends at step %d: %s", state.step, state.stop_reason)

    def take(self) -> float:
        """Look at what this step is due for; return the seconds that it took."""
        began, state = self._clock(), self._state
        self.score = None
        if self._validation and self._is_due(state.config.validate_every):
            found = self._losses(self._validation)
            loss = found.get("val_loss", math.nan)
            self.score = loss if math.isfinite(loss) else None
            if self._ranks.rank == 0:
                self._member.metric(step=state.step, tokens=state.tokens, **found)
        if self._speaker and self._is_due(state.config.sample_every):
            self._speak(self._speaker)
        return self._clock() - began

    def _is_due(self, every: int) -> bool:
        return self._state.step % every == 0 or self._state.ended

    def _deciding_loss(self, stop: EarlyStop) -> float | None:
        state = self._state
        if self._stopping:
            return self._losses(self._stopping).get("val_loss")
        since = state.losses[state.step - stop.every : state.step].double()
        finite = since[torch.isfinite(since)]
        return float(finite.mean()) if len(finite) else None

    def _losses(self, validation: Validation) -> dict[str, float]:
        state = self._state
        share = -(-state.config.batch // state.layout.data_ranks)
        with state.looked_at(), autocast(state.config.precision, state.device):
            return validation.losses(
                state.model, self._ranks, micro_batch=state.config.micro_batch or share, alive=self._beating("validate")
            )

    def _speak(self, speaker: Speaker) -> None:
        state = self._state
        context = state.config.model.context or 0
        with state.looked_at(), autocast(state.config.precision, state.device):
            samples = speaker.speak(state.model, context=context, alive=self._beating("sample"))
        for prompt, completion in samples if self._ranks.rank == 0 else ():
            self._member.sample(step=state.step, prompt=prompt, completion=completion)
            log.info("step %d: %r is continued by %r", state.step, prompt, completion)

    def _beating(self, phase: str) -> Callable[[], None]:
        """Return what says that this rank is at work: a phase that is another each time."""
        asked = 0

        def alive() -> None:
            nonlocal asked
            asked += 1
            self._member.beat(f"{phase} {asked}", self._state.step)

        return alive

    def _opened(self, held_out: HeldOut, sequences: int) -> Validation:
        config = self._state.config
        return Validation(held_out, sequences=sequences, documents=config.document_mask, device=self._state.device)
