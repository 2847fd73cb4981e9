"""What the engine asks of the store about its steps: who may make a result, and what came of an attempt.

Invariant: the lease comes first, then a look for what its last holder committed; whoever cannot look gives the lease
back. Nothing here moves a step: the engine does, with the answers. All of it may be asked from several threads.
"""

from typing import NamedTuple

from marin.graph.produced import Produced
from marin.run.backend import Ended
from marin.run.failure import Failure
from marin.run.outcome import failure_of
from marin.run.planner import recalled_in
from marin.run.work import Work
from marin.store import Holder, Lease, Leases, Store


class Claim(NamedTuple):
    """The lease or who has it, and what was committed by then."""

    taken: Lease | Holder
    produced: Produced | None


class Outcome(NamedTuple):
    """What an attempt has come to: a result, or why there is none."""

    produced: Produced | None
    failure: Failure | None


class Claims:
    """Asks about the steps of one run."""

    def __init__(self, store: Store, leases: Leases) -> None:
        self._store = store
        self._leases = leases

    def claim(self, work: Work) -> Claim:
        """Take the lease unless another has it, and look: its holder may have committed before letting it go."""
        taken = self._leases.acquire(work.step_name, work.fingerprint)
        try:
            return Claim(taken, self._result_of(work))
        except BaseException:
            if isinstance(taken, Lease):
                self._leases.release(taken)
            raise

    def outcome(self, work: Work, ended: Ended) -> Outcome:
        """Return what an attempt has come to.

        A worker that was lost, or whose commit had no answer, may have committed: a success is never turned into a
        failure. One that reports success is believed over a single read, which may have been damaged on its way.
        """
        produced = self._result_of(work)
        if produced is None and ended.report is not None and ended.report.failure is None:
            produced = self._result_of(work)
        if produced is not None:
            return Outcome(produced, None)
        folder = self._store.attempt_folder(work.step_name, work.fingerprint, ended.attempt)
        return Outcome(None, failure_of(work, ended, folder))

    def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._leases.release(lease)

    def _result_of(self, work: Work) -> Produced | None:
        """Return what is committed for a step now with all its files, unless it is to make way."""
        found = recalled_in(self._store, [(work.step_name, work.fingerprint)]).get(work.fingerprint)
        return found if found is not None and found.attempt != work.replaces else None
