"""The training loop of one rank: the same for one CPU, one GPU, and many.

One step: count the targets of all ranks, compute the gradient of sum(cross-entropy) / count in micro-batches, add
gradients and loss over ranks in one call, clip on the whole norm, update. So results depend on neither micro-batches
nor ranks, beyond rounding; a rank without targets adds an exact 0.
The host waits for the device only where it logs, checkpoints, or (on the CPU, where that is free) checks the loss.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum

import torch

from marin.base.errors import MarinError
from marin.graph.context import Member
from marin.train.checkpoint import Checkpoints
from marin.train.feed import Batch, Feed, SequenceSource
from marin.train.order import samples
from marin.train.ranks import Ranks
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
        state = self._state
        feed = Feed(
            self._source,
            batch=state.config.batch,
            seed=state.config.seed,
            steps=range(state.step, state.num_steps),
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            device=state.device,
        )
        with feed:
            for batch in feed:
                self._member.beat("train", state.step)
                stop = self._step(batch)
                last = state.step == state.num_steps
                if state.step % state.config.log_every == 0 or last:
                    self._report()
                if last or stop or self._is_due():
                    self._save()
                if stop and not last:
                    return Outcome.STOPPED
        return Outcome.FINISHED

    def _step(self, batch: Batch) -> bool:
        """Do one optimiser step; return whether any rank was asked to stop."""
        state, step = self._state, self._state.step
        count, stops, audit = self._ranks.agree([batch.num_targets, self._member.stopping, batch.audit])
        log.debug("step %d rank %d samples %016x", step, self._ranks.rank, batch.audit & (2**64 - 1))
        state.gradients.clear()
        size = state.config.micro_batch or len(batch.tokens)
        for tokens, targets in zip(torch.split(batch.tokens, size), torch.split(batch.targets, size), strict=True):
            with _precision(state.device):
                loss = state.model.loss_sum(tokens, targets) / max(1, count)
            loss.backward()  # type: ignore[no-untyped-call]
            state.gradients.loss += loss.detach()
        self._ranks.add(state.gradients.summed)
        state.norms[step] = state.gradients.clip(state.config.clip)
        state.losses[step] = state.gradients.loss
        state.update.step(factor(state.config.schedule, step, state.num_steps))
        state.advance(num_targets=count, audit=audit)
        if state.device.type == "cpu":
            self._check()
        return stops > 0

    def _check(self) -> None:
        """Raise Diverged if a step since the last check was not finite: such weights are never saved."""
        state = self._state
        since = slice(self._checked, state.step)
        finite = torch.isfinite(state.losses[since]) & torch.isfinite(state.norms[since])
        if not bool(finite.all()):
            step = self._checked + int((~finite).nonzero()[0])
            first = step * state.config.batch
            ids = samples(first, first + state.config.batch, num_sequences=len(self._source), seed=state.config.seed)
            raise Diverged(
                f"loss {float(state.losses[step])}, gradient norm {float(state.norms[step])} at step {step}",
                where=f"step {step}, rank {self._ranks.rank}, sequences {', '.join(map(str, ids[:8]))}, ...",
                hint="lower `lr`, warm up longer, or look at these sequences; "
                f"the last checkpoint is of step {self._saved_step}",
            )
        self._checked = state.step

    def _report(self) -> None:
        self._check()
        state, now = self._state, self._clock()
        if self._ranks.rank == 0:
            step = state.step - 1
            self._member.metric(
                step=state.step,
                tokens=state.tokens,
                loss=float(state.losses[step]),
                lr=state.config.optimizer.lr * factor(state.config.schedule, step, state.num_steps),
                grad_norm=float(state.norms[step]),
                tokens_per_second=(state.tokens - self._logged_tokens) / max(now - self._logged_at, 1e-9),
            )
            total = state.num_steps * state.config.batch * (state.config.model.context or 0)
            done = total * state.step // state.num_steps
            self._member.progress(done, total, "tokens")
        self._logged_tokens, self._logged_at = state.tokens, now

    def _is_due(self) -> bool:
        config = self._state.config
        if config.checkpoint_steps is not None:
            return self._state.step - self._saved_step >= config.checkpoint_steps
        return self._clock() - self._saved_at >= config.checkpoint_seconds

    def _save(self) -> None:
        """Write a checkpoint from rank 0; the others meet it again at the next step."""
        self._check()
        if self._ranks.rank == 0:
            self._member.beat("checkpoint", self._state.step)
            self._checkpoints.save(
                step=self._state.step,
                generation=self._member.generation,
                tensors=self._state.tensors(),
                state=self._state.record(),
                may_commit=self._member.may_commit,
            )
        self._saved_step, self._saved_at = self._state.step, self._clock()


def _precision(device: torch.device) -> AbstractContextManager[object]:
    """Return bf16 autocast on CUDA; the CPU computes in fp32, where results must be comparable to the bit."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
