"""The training loop of one rank: the same for one CPU, one GPU, and many.

One step: count the targets of all ranks, compute the gradient of sum(cross-entropy) / count in micro-batches, add
gradients and loss over ranks in one call, clip on the whole norm, update. So results depend on neither micro-batches
nor ranks, beyond rounding; a rank without targets adds an exact 0.
The host waits for the device only where it logs, checkpoints, or (on the CPU, where that is free) checks the loss.
"""

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum

import torch
from torch import Tensor

from marin.base.errors import MarinError
from marin.graph.context import Member
from marin.train.checkpoint import Checkpoints
from marin.train.feed import Batch, Feed, SequenceSource
from marin.train.nonfinite import RollBack, StopRun, Verdict, verdict
from marin.train.order import samples
from marin.train.precision import autocast
from marin.train.ranks import Ranks
from marin.train.schedule import factor
from marin.train.state import TrainingState
from marin.train.validation import HeldOut, Validation

log = logging.getLogger(__name__)


class Outcome(Enum):
    """How a loop ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """Asked to; a checkpoint was written."""


class Diverged(MarinError):
    """The loss or the gradient is no longer a finite number."""


class Loop:
    """Trains a state to its last step."""

    def __init__(
        self,
        state: TrainingState,
        source: SequenceSource,
        checkpoints: Checkpoints,
        *,
        member: Member,
        ranks: Ranks,
        held_out: HeldOut | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._source = source
        self._checkpoints = checkpoints
        self._member = member
        self._ranks = ranks
        self._clock = clock
        self._checked = state.step
        self._saved_step, self._saved_at = state.step, clock()
        self._logged_tokens, self._logged_at = state.tokens, clock()
        self._validation = held_out and Validation(
            held_out,
            sequences=state.config.validate_sequences,
            documents=state.config.document_mask,
            device=state.device,
        )

    def resume(self) -> None:
        """Continue from the newest good checkpoint: rank 0 chooses and verifies it, the others load the same."""
        self._member.beat("restore", self._state.step)
        loaded = self._checkpoints.newest() if self._ranks.rank == 0 else None
        name = self._ranks.share("checkpoint", (loaded.name if loaded else "") if self._ranks.rank == 0 else None)
        if not name:
            return
        loaded = loaded or self._checkpoints.load(name)
        self._state.restore(loaded.tensors, loaded.state, where=f"{self._checkpoints.url}/{name}")
        self._checked = self._saved_step = self._state.step
        self._logged_tokens = self._state.tokens
        log.info("resumed at step %d from %s", self._state.step, name)

    def run(self) -> Outcome:
        """Train to the end, or to the step at which any rank is asked to stop. Ends with a checkpoint."""
        while (outcome := self._run_on()) is None:
            self._roll_back()
        return outcome

    @property
    def saved_step(self) -> int:
        """The step from which this run would continue."""
        return self._saved_step

    def _run_on(self) -> Outcome | None:
        """Train from the cursor on; None when this step has to be rolled back."""
        state = self._state
        feed = Feed(
            self._source,
            plan=state.plan,
            offset=state.offset,
            seed=state.config.seed,
            steps=range(state.step, state.num_steps),
            rank=state.layout.data_rank,
            world_size=state.layout.data_ranks,
            device=state.device,
            documents=state.config.document_mask,
        )
        with feed:
            for batch in feed:
                self._member.beat("train", state.step)
                stop, done = self._step(batch)
                if done is Verdict.ROLL_BACK:
                    return None
                last = state.step == state.num_steps
                if state.step % state.config.log_every == 0 or last:
                    self._report()
                if self._validation and (state.step % state.config.validate_every == 0 or last):
                    self._validate(self._validation)
                if last or self._is_due(stop=stop):
                    self._save()
                if stop and not last:
                    return Outcome.STOPPED
        return Outcome.FINISHED

    def _step(self, batch: Batch) -> tuple[bool, Verdict]:
        """Do one optimiser step; return whether any rank was asked to stop, and what was done about the step."""
        state, step = self._state, self._state.step
        own = [batch.num_targets, batch.audit] if self._ranks.layout.leads else [0, 0]
        stops, count, audit = self._ranks.agree([self._member.stopping, *own])
        log.debug("step %d rank %d samples %016x", step, self._ranks.rank, batch.audit & (2**64 - 1))
        state.gradients.clear()
        parts = batch.micro_batches(state.config.micro_batch, least=self._num_parts(step))
        for number, part in enumerate(parts, 1):
            state.gradients.begin(last=number == len(parts))
            with autocast(state.config.precision, state.device):
                loss = state.model.loss_sum(
                    part.tokens, part.targets, part.segments, part.positions, z_loss=state.config.z_loss
                ) / max(1, count)
            loss.backward()  # type: ignore[no-untyped-call]
            state.gradients.loss += loss.detach()
        state.gradients.add_up(self._ranks)
        state.norms[step] = state.gradients.clip(state.config.clip)
        state.losses[step] = state.gradients.loss
        done = self._verdict(step)
        if done is Verdict.ROLL_BACK:
            return stops > 0, done
        if done is Verdict.UPDATE:
            state.update.step(factor(state.config.schedule, step, state.num_steps, state.plan.sequences))
            if state.average is not None:
                state.average.update(step)
        state.advance(num_targets=count, audit=audit)
        if state.device.type == "cpu":
            self._check()
        return stops > 0, done

    def _num_parts(self, step: int) -> int:
        """Return how many micro-batches each rank computes at least: as many as any, where they compute together."""
        size = self._state.config.micro_batch
        if size is None or not self._state.layout.divides:
            return 1
        return -(-self._state.plan.batch(step) // (self._state.layout.data_ranks * size))

    def _verdict(self, step: int) -> Verdict:
        """Return what to do about a step, the same on all ranks; raises Diverged when the policy's cap is reached.

        A run that stops at such a step asks later (`_check`), so that the host need not wait for the device here.
        """
        state = self._state
        if isinstance(state.config.nonfinite, StopRun):
            return Verdict.UPDATE
        finite = torch.isfinite(state.losses[step]) & torch.isfinite(state.norms[step])
        (worst,) = self._ranks.agree([int(not bool(finite))])
        done = verdict(state.config.nonfinite, finite=worst == 0, so_far=len(state.events))
        if done is Verdict.STOP:
            raise self._diverged(step)
        if done is Verdict.SKIP:
            state.events.append({"step": step, "action": "skip"})
            log.warning("step %d is skipped: its loss or gradient is not finite", step)
        return done

    def _roll_back(self) -> None:
        """Return to the newest good checkpoint and pass over the samples since; Diverged where there is none."""
        state, step = self._state, self._state.step
        loaded = self._checkpoints.newest() if self._ranks.rank == 0 else None
        own_name = (loaded.name if loaded else "") if self._ranks.rank == 0 else None
        name = self._ranks.share(f"rollback/{len(state.events)}", own_name)
        if not name:
            raise self._diverged(step)
        loaded = loaded or self._checkpoints.load(name)
        state.return_to(loaded.tensors, loaded.state, where=f"{self._checkpoints.url}/{name}")
        self._checked = self._saved_step = state.step
        self._logged_tokens = state.tokens
        log.warning("step %d is not finite: rolled back to %s, the samples since are passed over", step, name)

    def _check(self) -> None:
        """Raise Diverged if a step since the last check was not finite: such weights are never saved."""
        state = self._state
        if not isinstance(state.config.nonfinite, StopRun):
            return
        since = slice(self._checked, state.step)
        finite = torch.isfinite(state.losses[since]) & torch.isfinite(state.norms[since])
        if not bool(finite.all()):
            raise self._diverged(self._checked + int((~finite).nonzero()[0]))
        self._checked = state.step

    def _diverged(self, step: int) -> Diverged:
        state = self._state
        first = state.offset + state.plan.sequences(step)
        stop = first + state.plan.batch(step)
        ids = samples(first, stop, num_sequences=len(self._source), seed=state.config.seed)
        earlier = f", after {len(state.events)} others" if state.events else ""
        return Diverged(
            f"loss {float(state.losses[step])}, gradient norm {float(state.norms[step])} at step {step}{earlier}",
            where=f"step {step}, rank {self._ranks.rank}, sequences {', '.join(map(str, ids[:8]))}, ...",
            hint="lower `lr`, warm up longer, or look at these sequences; "
            f"the last checkpoint is of step {self._saved_step}",
        )

    def _report(self) -> None:
        self._check()
        state, now = self._state, self._clock()
        if self._ranks.rank == 0:
            step, config, plan = state.step - 1, state.config, state.plan
            more: dict[str, float] = {"batch": plan.batch(step)} if config.ramp else {}
            if not isinstance(config.nonfinite, StopRun):
                more["nonfinite_steps"] = len(state.events)
            self._member.metric(
                step=state.step,
                tokens=state.tokens,
                loss=float(state.losses[step]),
                lr=config.optimizer.lr * factor(config.schedule, step, state.num_steps, plan.sequences),
                grad_norm=float(state.norms[step]),
                tokens_per_second=(state.tokens - self._logged_tokens) / max(now - self._logged_at, 1e-9),
                **more,
            )
            context = config.model.context or 0
            self._member.progress(
                plan.sequences(state.step) * context, plan.sequences(state.num_steps) * context, "tokens"
            )
        self._logged_tokens, self._logged_at = state.tokens, now

    def _validate(self, validation: Validation) -> None:
        """Record the loss on held-out sequences; its time is not counted into the tokens a second."""
        state, began, asked = self._state, self._clock(), 0

        def alive() -> None:
            nonlocal asked
            asked += 1
            self._member.beat(f"validate {asked}", state.step)

        share = -(-state.config.batch // state.layout.data_ranks)
        with autocast(state.config.precision, state.device):
            found = validation.losses(
                state.model, self._ranks, micro_batch=state.config.micro_batch or share, alive=alive
            )
        state.forget_whole()
        if self._ranks.rank == 0:
            self._member.metric(step=state.step, tokens=state.tokens, **found)
        self._logged_at += self._clock() - began

    def _is_due(self, *, stop: bool) -> bool:
        config = self._state.config
        if isinstance(config.nonfinite, RollBack):
            return self._state.step % config.nonfinite.every == 0
        if stop:
            return True
        if config.checkpoint_steps is not None:
            return self._state.step - self._saved_step >= config.checkpoint_steps
        return self._clock() - self._saved_at >= config.checkpoint_seconds

    def _save(self) -> None:
        """Write a checkpoint from rank 0; the others hand over their pieces, and meet it again at the next step."""
        self._check()
        self._state.hand_over(self._write)
        self._saved_step, self._saved_at = self._state.step, self._clock()

    def _write(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._member.beat("checkpoint", self._state.step)
        self._checkpoints.save(
            step=self._state.step,
            generation=self._member.generation,
            tensors=tensors,
            state=self._state.record(),
            may_commit=self._member.may_commit,
        )
