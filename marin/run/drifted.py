"""Results that older source made, met while a run goes on: kept with a word, made anew or refused, as was asked.

A plan has looked at the results that it could see. What a step below a parent that runs will hit is known only once the
parent has ended; the engine asks here then.
"""

from marin.base.errors import ConfigurationError
from marin.graph.code.closure import CodeDigest
from marin.graph.code.declared import SourceDigest
from marin.graph.drift import Drift, OnDrift, has_drifted, refuse_drift
from marin.graph.plan import Plan
from marin.graph.produced import Produced
from marin.graph.recipe import source_of
from marin.run.failure import Failure, explain
from marin.run.work import Work


class DriftWatch:
    """Judges the results that one run meets."""

    def __init__(self, plan: Plan) -> None:
        self.on_drift: OnDrift = plan.on_drift
        self._accepted = plan.accepted
        self._said = {each.name for each in plan.drift}
        self._sources: dict[type, CodeDigest | SourceDigest | None] = {}

    def of(self, work: Work, produced: Produced) -> Drift | None:
        """Return how a result differs from its step's source of today, unless the plan has said so."""
        step = work.planned.step
        if step.version is None or (self.on_drift == "warn" and work.name in self._said):
            return None
        if type(step) not in self._sources:  # code is frozen while a run goes on
            self._sources[type(step)] = source_of(step)
        source = self._sources[type(step)]
        if source is None or not has_drifted(produced.source, source.digest, self._accepted):
            return None
        return Drift(work.name, work.step_name, step.version, str(produced.source), source.digest, ())


def words_of(drift: Drift) -> str:
    """Return what a screen says of a result that is used all the same."""
    what = f"code drift: its source changed under version {drift.version}"
    return f"{what}; --on-drift rerun makes it anew, `marin bless` accepts the change"


def refusal_of(drift: Drift) -> Failure:
    """Return the failure of a step whose result is not to be passed over."""
    try:
        refuse_drift([drift], "fail")
    except ConfigurationError as error:
        return explain(error, hint=error.hint)
    raise AssertionError("drift is refused where it fails")
