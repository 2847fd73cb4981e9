"""Run, load and plan from Python: what notebooks, tests and the command line call.

Invariant: importing this module imports neither Ray nor torch; the Ray backend is imported when something has to run.
"""

import contextlib
import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, cast, overload

from marin.base.errors import ConfigurationError, Interrupted, MarinError, StepError, StoreError
from marin.base.json import Json
from marin.base.lazy import resolve
from marin.graph.artifact import Artifact
from marin.graph.drift import OnDrift, refuse_drift
from marin.graph.pipeline import Pipeline
from marin.graph.plan import Plan, make_plan
from marin.graph.step import Step
from marin.graph.topology import order
from marin.run.address import cluster_address
from marin.run.backend import Backend
from marin.run.engine import Engine, OnBusy
from marin.run.failure import explain
from marin.run.planner import StoreCatalogue, pins
from marin.run.producer import detailed, submitted, this_producer
from marin.run.publish import check_places, place_of, publish
from marin.run.ray_settings import settle_ray
from marin.run.result import RunResult
from marin.run.stopping import GRACE_SECONDS, Stopping
from marin.store import EventWriter, Heartbeat, Leases, Manifest, Producer, Store, new_run_id, read_submission

A = TypeVar("A", bound=Artifact)

BackendName = Literal["ray", "inline"]
BACKENDS = {"ray": "marin.run.backends.ray:RayBackend", "inline": "marin.run.backends.inline:InlineBackend"}
IN_WORKER = "MARIN_RUN"  # set by the Ray backend in every worker
SENT_TREE = "MARIN_TREE"  # set for the driver of a submitted run: where its copy of the working tree lies
RAY_PROBE = "marin.run.backends.ray_connect:probe"


@overload
def run(
    target: Step[A],
    *,
    store: str | os.PathLike[str] = ...,
    backend: BackendName | Backend = ...,
    address: str | None = ...,
    on_drift: OnDrift = ...,
    on_busy: OnBusy = ...,
    read_from: Sequence[str] = ...,
) -> A: ...


@overload
def run(
    target: Sequence[Step[Any]],
    *,
    store: str | os.PathLike[str] = ...,
    backend: BackendName | Backend = ...,
    address: str | None = ...,
    on_drift: OnDrift = ...,
    on_busy: OnBusy = ...,
    read_from: Sequence[str] = ...,
) -> list[Artifact]: ...


def run(
    target: Step[Any] | Sequence[Step[Any]],
    *,
    store: str | os.PathLike[str] = ".marin",
    backend: BackendName | Backend = "ray",
    address: str | None = None,
    on_drift: OnDrift = "warn",
    on_busy: OnBusy = "wait",
    read_from: Sequence[str] = (),
) -> Artifact | list[Artifact]:
    """Do what is missing and return the artifact of `target`, or a list for several steps.

    `on_drift` says what becomes of results whose step's source has changed under its declared version, `on_busy` of
    steps that another run is making: wait for its results, leave them to it (and what needs them), or fail.
    `read_from` names upstream stores, whose artifacts are hits and which are never written to. Raises StepError with
    the first root cause when a step failed, and Interrupted after Ctrl-C.
    """
    steps = _steps(target)
    planned = plan(steps, store=store, on_drift=on_drift, read_from=read_from)
    result = run_plan(planned, store=store, backend=backend, address=address, on_busy=on_busy, read_from=read_from)
    raise_unless_done(result)
    opened = Store.open(os.fspath(store), write=False, read_from=read_from)
    artifacts = [_open(step, cast(str, result.step(_name(planned, step)).fingerprint), opened) for step in steps]
    return artifacts[0] if isinstance(target, Step) else artifacts


def load(step: Step[A], *, store: str | os.PathLike[str] = ".marin", read_from: Sequence[str] = ()) -> A:
    """Return the artifact of a step that has been run; StoreError when no store has it."""
    planned = plan(step, store=store, read_from=read_from).steps[-1]
    if planned.state != "cached" or planned.fingerprint is None:
        raise StoreError(
            f"the store has no result of {planned.name} yet",
            where=os.fspath(store),
            hint="marin.run(step) makes it; marin.plan([step]) says why it would run",
        )
    opened = Store.open(os.fspath(store), write=False, read_from=read_from)
    return cast(A, _open(step, planned.fingerprint, opened))


def plan(
    target: Step[Any] | Sequence[Step[Any]],
    *,
    store: str | os.PathLike[str] = ".marin",
    on_drift: OnDrift = "warn",
    read_from: Sequence[str] = (),
) -> Plan:
    """Return what a run would do, and why; writes nothing."""
    opened = Store.open(os.fspath(store), write=False, read_from=read_from)
    return make_plan(_steps(target), StoreCatalogue(opened), pins, on_drift)


def run_plan(
    planned: Plan,
    *,
    store: str | os.PathLike[str],
    run: str | None = None,
    backend: BackendName | Backend = "ray",
    address: str | None = None,
    labels: Mapping[str, Json] | None = None,
    on_busy: OnBusy = "wait",
    read_from: Sequence[str] = (),
    interrupted: threading.Event | None = None,
    grace: float = GRACE_SECONDS,
) -> RunResult:
    """Execute a plan and return what came of each step; raises for a cluster or store that does not answer.

    `run` is the run's id (new by default), `labels` go into its record. A Backend object is left open for more runs.
    `read_from` is what the plan was made with. Setting `interrupted` asks the run to stop, as `marin stop` does:
    gangs and maps have `grace` seconds to keep what they have.
    """
    address = cluster_address(address) if backend == "ray" else None
    _check_may_run(planned)
    opened = Store.open(os.fspath(store), write=True, read_from=read_from)
    run = run or new_run_id()
    here, submission = this_producer(), read_submission(opened.url, run)
    producer = submitted(here, submission)
    opened_here: list[Backend] = []

    def backend_needed() -> Backend:
        if isinstance(backend, str) and not opened_here:
            opened_here.append(open_backend(backend, address))
        return opened_here[0] if isinstance(backend, str) else backend

    events = EventWriter(opened.url, run, "driver")
    engine = Engine(
        opened,
        backend_needed,
        run=run,
        leases=Leases(opened, run, user=producer.user),
        heartbeat=Heartbeat(opened, run),
        events=events,
        producer=functools.cache(lambda: submitted(detailed(here, opened.url), submission)),
        code_folders=code_folders(),
        on_busy=on_busy,
        stopping=Stopping(opened.url, run, user=producer.user, grace=grace, interrupted=interrupted),
    )
    try:
        if address is not None and any(step.state == "run" for step in planned.steps):
            backend_needed().start(code_folders(), run)  # a cluster that is not reached leaves no run behind
        with _recorded({**(labels or {}), **_run_record(run, planned, opened, producer)}, opened, events) as record:
            try:
                result = engine.run(planned)
            finally:  # also when the run is refused or loses its cluster, its steps are what the events say
                record["steps"] = [step.to_json() for step in engine.steps]
            record.update(result.to_json())
            _publish(planned, result, opened)
            return result
    finally:
        events.close()
        for started in opened_here:
            started.close()


@contextlib.contextmanager
def _recorded(record: dict[str, Json], store: Store, events: EventWriter) -> Iterator[dict[str, Json]]:
    """Keep the record of a run: that it goes on, and how it ended; also the error that ended it."""
    run = str(record["run"])
    store.write_run(run, record)
    record["state"] = "failed"  # until the engine says otherwise
    try:
        events.emit("run", state="running")
        yield record
    except BaseException as error:
        record |= {"state": "failed", "error": explain(error, hint="run it again with --traceback").error}
        if isinstance(error, MarinError):
            error.ids["run"] = run
        raise
    finally:
        events.emit("run", state=record["state"])
        store.write_run(run, {**record, "finished": _now()})


def _check_may_run(planned: Plan) -> None:
    """Raise ConfigurationError for a plan that must not be run, or not here."""
    refuse_drift(planned.drift, planned.on_drift)
    if SENT_TREE in os.environ:
        check_places([each.step for each in planned.steps])
    if os.environ.get(IN_WORKER):
        raise ConfigurationError(
            "a run was started inside a worker of another run",
            where=f"run {os.environ[IN_WORKER]}",
            hint='start runs under `if __name__ == "__main__":`; workers import the same file',
        )


def _steps(target: object) -> list[Step[Any]]:
    """Return the steps that were asked for; ConfigurationError for anything else."""
    steps = [target] if isinstance(target, Step) else list(target) if isinstance(target, list | tuple) else []
    if not steps or not all(isinstance(step, Step) for step in steps):
        what = f"pipeline `{target.name}`" if isinstance(target, Pipeline) else f"{target!r}"
        hint = "call it: marin.run(pipeline())" if isinstance(target, Pipeline) else "give a step, or a list of steps"
        raise ConfigurationError(f"{what} is no step", hint=hint)
    return steps


def _run_record(run: str, planned: Plan, store: Store, producer: Producer) -> dict[str, Json]:
    """Return what stands in `run.json` while the run goes on."""
    return {
        "run": run,
        "state": "running",
        "store": store.url,
        "user": producer.user,
        "host": producer.host,
        "commit": producer.commit,
        "pid": os.getpid(),
        "started": _now(),
        "steps": [{"name": step.name, "step": step.step.step_name(), "state": "waiting"} for step in planned.steps],
    }


def _publish(planned: Plan, result: RunResult, store: Store) -> None:
    """Copy what `.at(url)` asks for and is not there yet, of all steps that have a result."""
    for step in planned.steps:
        url, fingerprint = place_of(step.step), result.step(step.name).fingerprint
        if url is not None and fingerprint is not None and result.step(step.name).state in ("cached", "done"):
            publish(store, _committed(store, step.step.step_name(), fingerprint), url)


def raise_unless_done(result: RunResult) -> None:
    """Raise what a run that is not done came to: the first root cause, or Interrupted."""
    if result.state == "stopped":
        raise Interrupted("the run was stopped", where=f"run {result.run}", hint="run it again to continue")
    failed = [step for step in result.steps if step.state == "failed"]
    if failed:
        error = failed[0].error or {}
        more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
        what = f"step {failed[0].name} failed: {error.get('message')}{more}"
        raise StepError(what, where=str(error.get("where", "")), hint=str(error.get("hint", "")))
    blocked = [step for step in result.steps if step.state == "blocked"]
    if blocked:
        error = blocked[0].error or {}
        what = f"step {blocked[0].name} was not made: {error.get('message')}"
        raise StepError(what, where=str(error.get("where", "")), hint=str(error.get("hint", "")))


def open_backend(name: BackendName, address: str | None) -> Backend:
    """Return a backend by name, importing it; nothing is started yet."""
    if name not in BACKENDS:
        raise ConfigurationError(f"there is no backend {name!r}", hint="use `ray` or `inline`")
    if name == "inline":
        return cast(Backend, resolve(BACKENDS[name])())
    address = cluster_address(address)
    settle_ray(address)
    return cast(Backend, resolve(BACKENDS[name])(address, tree=os.environ.get(SENT_TREE)))


def check_address(address: str) -> None:
    """Raise ClusterError unless something listens at a cluster's address, ConfigurationError if it is none."""
    if (found := cluster_address(address)) is not None:
        resolve(RAY_PROBE)(found)


def code_folders() -> list[str]:
    """Return the folders of first-party modules: what is importable here and belongs to no installation."""
    installed = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    folders = [os.path.abspath(entry) for entry in sys.path]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if os.path.isdir(folder) and not any(f"{folder}/".startswith(f"{root}/") for root in installed)
    ]


def _name(planned: Plan, step: Step[Any]) -> str:
    """Return the name of a wanted step; one whose equal stands in the plan in its place is found by its recipe."""
    same = [each.name for each in planned.steps if each.step is step]
    if same:
        return same[0]
    recipe = order([step], pins)[-1].recipe
    return next(each.name for each in planned.steps if each.recipe == recipe)


def _open(step: Step[Any], fingerprint: str, store: Store) -> Artifact:
    committed = _committed(store, step.step_name(), fingerprint)
    return step.artifact_type().open(store.contents(committed))


def _committed(store: Store, step_name: str, fingerprint: str) -> Manifest:
    """Return a result that was there a moment ago, also when `marin gc` has unlisted it since."""
    key = (step_name, fingerprint)
    found = store.find([key]) or store.recall([key])
    if fingerprint not in found:
        raise StoreError(
            f"the result of {step_name} is gone", where=store.url, hint="run the same command again: it is made anew"
        )
    return found[fingerprint]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
