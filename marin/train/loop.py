"""The training loop of one rank: the same for one CPU, one GPU, and many.

One step: count the targets of all ranks, compute the gradient of sum(cross-entropy) / count in micro-batches, add
gradients and loss over ranks in one call, clip on the whole norm, update. So results depend on neither micro-batches
nor ranks, beyond rounding; a rank without targets adds an exact 0.
The host waits for the device only where it logs, copies a checkpoint, or (on the CPU, where that is free) checks the
loss; checkpoints are written while training goes on.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from enum import Enum

import torch
from torch import Tensor

from marin.base.errors import MarinError
from marin.graph.context import Member
from marin.train.checkpoint import Checkpoints
from marin.train.feed import Batch, Feed, SequenceSource
from marin.train.looks import Looks, Watched
from marin.train.meter import Meter
from marin.train.nonfinite import RollBack, StopRun, Verdict, verdict
from marin.train.order import samples
from marin.train.precision import autocast
from marin.train.profiler import Profiler
from marin.train.ranks import Ranks
from marin.train.saving import Saver
from marin.train.schedule import factor
from marin.train.state import TrainingState

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
        watched: Watched | None = None,
        until: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`until`: the step after which to end, before the run's last."""
        self._state = state
        self._end = min(until or state.num_steps, state.num_steps)
        self._source = source
        self._checkpoints = checkpoints
        self._member = member
        self._ranks = ranks
        self._clock = clock
        self._checked = state.step
        self._saver = Saver(
            checkpoints,
            generation=member.generation,
            may_commit=member.may_commit,
            alive=lambda phase: member.beat(phase, state.step),
            copy_bytes=state.saved_bytes if ranks.rank == 0 else 0,
        )
        self._saved_step, self._saved_at = state.step, clock()
        self._is_time = False
        self._best = math.inf
        self._meter = Meter(state.config, world_size=ranks.world_size, device=state.device, clock=clock)
        self._profiler = Profiler(state.config.profile, rank=ranks.rank, device=state.device)
        self._looks = Looks(watched or Watched(), state, member=member, ranks=ranks, clock=clock)

    def resume(self) -> None:
        """Continue from the newest good checkpoint: rank 0 chooses and verifies it, the others load the same."""
        self._member.beat("restore", self._state.step)
        loaded = self._checkpoints.newest() if self._ranks.rank == 0 else None
        name = self._ranks.share("checkpoint", (loaded.name if loaded else "") if self._ranks.rank == 0 else None)
        if not name:
            return
        loaded = loaded or self._checkpoints.load(name)
        if self._state.config.keep.best:
            scores = [each.score for each in self._checkpoints.found() if each.score is not None]
            self._best = min(scores, default=math.inf)
        self._state.restore(loaded.tensors, loaded.state, where=f"{self._checkpoints.url}/{name}")
        self._checked = self._saved_step = self._state.step
        log.info("resumed at step %d from %s", self._state.step, name)

    def run(self) -> Outcome:
        """Train to the end, or to the step at which any rank is asked to stop. Ends with a checkpoint."""
        with self._saver, self._profiler:
            while (outcome := self._run_on()) is None:
                self._roll_back()
            self._saver.settle()
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
            steps=range(state.step, state.step if state.ended else self._end),
            rank=state.layout.data_rank,
            world_size=state.layout.data_ranks,
            device=state.device,
            documents=state.config.document_mask,
        )
        self._meter.start(step=state.step, tokens=state.tokens, sequences=state.plan.sequences(state.step))
        with feed:
            for batch in feed:
                self._member.beat("train", state.step)
                self._profiler.begin(state.step)
                stop, done = self._step(batch)
                self._profiler.end()
                if done is Verdict.ROLL_BACK:
                    return None
                self._looks.decide()
                last = state.ended or state.step == self._end
                if state.step % state.config.log_every == 0 or last:
                    self._report(feed.waited)
                self._meter.leave_out(self._looks.take())
                self._saver.check()
                if last or self._is_due(stop=stop):
                    self._save(at_once=last or stop)
                if last:
                    break  # where a run ends early, the feed has more
                if stop:
                    return Outcome.STOPPED
        return Outcome.FINISHED

    def _step(self, batch: Batch) -> tuple[bool, Verdict]:
        """Do one optimiser step; return whether any rank was asked to stop, and what was done about the step."""
        state, step = self._state, self._state.step
        own = [batch.num_targets, batch.audit] if self._ranks.layout.leads else [0, 0]
        wishes = [self._member.stopping, self._ranks.rank == 0 and self._has_waited()]
        count, audit, stops, times = self._ranks.agree([*own, *wishes])
        self._is_time = times > 0
        log.debug("step %d rank %d samples %016x", step, self._ranks.rank, batch.audit & (2**64 - 1))
        state.gradients.clear()
        parts = batch.micro_batches(state.config.micro_batch, least=self._num_parts(step))
        for number, part in enumerate(parts, 1):
            state.gradients.begin(last=number == len(parts))
            if state.adapters is not None:
                state.adapters.draw(part.samples)
            with autocast(state.config.precision, state.device):
                loss = state.model.loss_sum(
                    part.tokens, part.targets, part.segments, part.positions, z_loss=state.config.z_loss
                ) / max(1, count)
            loss.backward()  # type: ignore[no-untyped-call]
            state.gradients.loss += loss.detach()
        if state.adapters is not None:
            state.adapters.draw(None)
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
        self._saver.settle()
        loaded = self._checkpoints.newest() if self._ranks.rank == 0 else None
        own_name = (loaded.name if loaded else "") if self._ranks.rank == 0 else None
        name = self._ranks.share(f"rollback/{len(state.events)}", own_name)
        if not name:
            raise self._diverged(step)
        loaded = loaded or self._checkpoints.load(name)
        state.return_to(loaded.tensors, loaded.state, where=f"{self._checkpoints.url}/{name}")
        self._checked = self._saved_step = state.step
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

    def _report(self, waited: float) -> None:
        """Record the numbers of the step and of the steps since the last report.

        All waits for the device stand before the clock is read: `_check` asks for losses, `float` for this one.
        """
        self._check()
        state = self._state
        step, config, plan = state.step - 1, state.config, state.plan
        loss, norm = float(state.losses[step]), float(state.norms[step])
        position = plan.sequences(state.step)
        measured = self._meter.read(step=state.step, tokens=state.tokens, sequences=position, waited=waited)
        if self._ranks.rank != 0:
            return
        more: dict[str, float] = {"batch": plan.batch(step)} if config.ramp else {}
        if not isinstance(config.nonfinite, StopRun):
            more["nonfinite_steps"] = len(state.events)
        self._member.metric(
            step=state.step,
            tokens=state.tokens,
            loss=loss,
            lr=config.optimizer.lr * factor(config.schedule, step, state.num_steps, plan.sequences),
            grad_norm=norm,
            restarts=max(0, self._member.generation - 1),
            **measured,
            **more,
        )
        context = config.model.context or 0
        self._member.progress(position * context, plan.sequences(state.num_steps) * context, "tokens")

    def _has_waited(self) -> bool:
        return not self._saver.is_busy and self._clock() - self._saved_at >= self._state.config.checkpoint_seconds

    def _is_due(self, *, stop: bool) -> bool:
        """Whether to write a checkpoint after this step: the same on all ranks, as all are needed for one."""
        config, step = self._state.config, self._state.step
        if isinstance(config.nonfinite, RollBack):
            return step % config.nonfinite.every == 0
        if stop or config.keep.keeps(step) or self._is_better():
            return True
        if config.checkpoint_steps is not None:
            return step - self._saved_step >= config.checkpoint_steps
        return self._is_time

    def _is_better(self) -> bool:
        """Whether held-out sequences were looked at after this step, and no checkpoint is as good."""
        score = self._looks.score
        if score is None or not self._state.config.keep.best:
            return False
        (better,) = self._ranks.agree([self._ranks.rank == 0 and score < self._best])
        return better > 0

    def _save(self, *, at_once: bool) -> None:
        """Write a checkpoint from rank 0 while training goes on, or `at_once`; the others meet it at the next step.

        Those that hold pieces of the state hand them over first.
        """
        self._check()
        self._state.hand_over(lambda tensors: self._write(tensors, at_once=at_once))
        score = self._looks.score
        self._best = min(self._best, math.inf if score is None else score)
        self._saved_step, self._saved_at = self._state.step, self._clock()

    def _write(self, tensors: Mapping[str, Mapping[str, Tensor]], *, at_once: bool) -> None:
        self._member.beat("checkpoint", self._state.step)
        step, score = self._state.step, self._looks.score
        self._saver.save(step=step, tensors=tensors, state=self._state.record(), score=score, at_once=at_once)
