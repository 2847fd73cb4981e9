"""An attempt: one try of one step, from the order to the committed manifest; runs in the worker.

Invariant: whatever a step raises becomes a `Report`; the worker commits, so a dead driver loses nothing. It refuses
to run code that differs from the plan's.
"""

import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from marin import fs
from marin.base.errors import Interrupted, StepError, StoreError
from marin.base.json import Json, dumps
from marin.fs.pins import check_unchanged, default_memo
from marin.graph.artifact import Artifact
from marin.graph.code.closure import CodeDigest
from marin.graph.code.declared import SourceDigest
from marin.graph.constructor import constructor_of
from marin.graph.recipe import Recipe, recipe_of, source_of
from marin.graph.step import Step, dependencies
from marin.run.backend import Workers
from marin.run.context import RunContext
from marin.run.failure import Failure, explain, user_errors
from marin.run.log import copied, redirected
from marin.run.order import Order, Report
from marin.run.publish import publish
from marin.run.retry import Cause
from marin.run.timelimit import StepTimeout, time_limit
from marin.store import EventWriter, Manifest, ParentRef, Store, output_digest, own_contents, unplaced_contents
from marin.store.code import write_definitions, write_modules

Emit = Callable[..., None]
Log = Callable[[str], None]
EXIT_TIMEOUT = 70
ARTIFACT_SCHEMA = 1
_CHECK_THEIR_INPUTS = {f"marin.steps.{name}" for name in ("files", "parquet", "hugging_face")}
"""They may have very many, and compare the digest of each with what they read."""


def execute(order: Order, load: Callable[[], Step[Any]], workers: Workers) -> Report:
    """Make the attempt of the step that `load` gives; never raises for what it does, only for a user's interrupt."""
    began = time.monotonic()
    try:
        report = _execute(order, load, workers)
    except StoreError as error:
        # Before or after the step's own work: its records could not be read or left. What it committed counts.
        report = Report(order.identity.attempt, failure=explain(error, hint=error.hint, cause=Cause.LOST))
    return replace(report, seconds=time.monotonic() - began)


def _execute(order: Order, load: Callable[[], Step[Any]], workers: Workers) -> Report:
    identity = order.identity
    store = Store.open(identity.store, write=True, read_from=identity.read_from)
    folder = store.attempt_folder(identity.step_name, identity.fingerprint, identity.attempt)
    writer = EventWriter(identity.store, identity.run, identity.attempt)

    def emit(kind: str, **fields: Any) -> None:  # Any: JSON of the event
        writer.emit(kind, **identity.event_fields, **fields)

    def give_up(error: StepTimeout) -> None:
        if workers.own_process:  # the step is stuck in C code: only the end of its process ends it
            write_result(folder, explain(error, hint=error.hint, cause=Cause.TIMEOUT))
            os._exit(EXIT_TIMEOUT)

    capture = redirected if workers.own_process else copied
    try:
        with capture(fs.join(folder, "log.txt")) as log:
            emit("placement", pid=os.getpid(), host=socket.gethostname())
            emit("state", state="running")
            try:
                with time_limit(order.resources.timeout, where=f"step {identity.name}", give_up=give_up):
                    report = _compute(order, load(), store=store, workers=workers, emit=emit, log=log.write)
            except user_errors(workers.own_process) as error:  # the boundary: a step may raise anything
                cause = _cause(error)
                failure = explain(error, hint=f"the whole traceback is in {log.url}", cause=cause)
                log.write(failure.text)
                emit("exit", cause=str(failure.cause), message=failure.message)
                report = Report(identity.attempt, failure=failure)
            write_result(folder, report.failure)
            return report
    finally:
        writer.close()


def _cause(error: BaseException) -> Cause:
    """Return whose doing an exception is: the clock's, the storage's (worth another try), a stop's, or the step's."""
    if isinstance(error, StepTimeout):
        return Cause.TIMEOUT
    if isinstance(error, Interrupted):  # a map or gang that was told to stop has kept what it has
        return Cause.STOPPED
    return Cause.LOST if isinstance(error, fs.Unavailable) else Cause.EXCEPTION


def write_result(folder: str, failure: Failure | None) -> None:
    """Leave how the attempt ended beside its log, for whoever finds the worker gone."""
    record: dict[str, Json] | None = {**failure.error, "cause": str(failure.cause)} if failure else None
    fs.replace(fs.join(folder, "result.json"), dumps({"failure": record}).encode())


def _compute(order: Order, step: Step[Any], *, store: Store, workers: Workers, emit: Emit, log: Log) -> Report:
    started = datetime.now(UTC)
    identity = order.identity
    parents = _parents(order, store)
    recipe, source = _checked_code(order, step, parents)
    context = RunContext(order, step, store=store, parents=parents, workers=workers, emit=emit, log=log)
    artifact = step.run(context)
    _check_type(order, step, artifact)
    _check_inputs(order, step)
    modules = _record_code(order, store, step, recipe, source)
    manifest = _manifest(order, store, artifact, started, context, parents)
    written = replace(manifest, modules=modules, constructor=constructor_of(step))
    commit = store.commit(written, replaces=order.replaces)
    if commit.outcome == "adopted":
        emit("log", line="another attempt committed other bytes first; its result is used (nondeterminism)")
    if order.place is not None:
        _publish(store, commit.manifest, order.place, emit)
    return Report(identity.attempt, metrics=context.metrics, shards=dict(context.shard_counts))


def _publish(store: Store, manifest: Manifest, place: str, emit: Emit) -> None:
    """Publish what was committed; what cannot be copied now is left to the driver, as the result itself is safe."""
    try:
        publish(store, manifest, place)
    except StoreError as error:
        emit("log", line=f"not published at {place} yet: {error.what}")


def _parents(order: Order, store: Store) -> dict[str, Manifest]:
    """Return the committed manifest of each parent, by the field that holds it."""
    found = store.find([(key.step_name, key.fingerprint) for key in order.parents])
    missing = [(key.step_name, key.fingerprint) for key in order.parents if key.fingerprint not in found]
    found |= store.recall(missing) if missing else {}
    for key in order.parents:
        if key.fingerprint not in found:
            raise StoreError(
                f"the artifact of {key.step_name} is gone",
                where=f"step {order.identity.name}, {key.path}",
                hint="run the same command again: it is made anew",
            )
    return {key.path: found[key.fingerprint] for key in order.parents}


def _checked_code(
    order: Order, step: Step[Any], parents: dict[str, Manifest]
) -> tuple[Recipe, CodeDigest | SourceDigest | None]:
    """Return recipe and source as this worker sees them; raises if its code is not the plan's."""
    digests = {id(parent): parents[path].digest for path, parent in dependencies(step)}
    recipe = recipe_of(step, lambda parent: digests[id(parent)], order.pins, order.accepted)
    source = source_of(step)
    if recipe.fingerprint != order.identity.fingerprint or (source and source.digest) != order.source:
        raise StepError(
            f"the code of {type(step).__name__} on {socket.gethostname()} differs from the plan's",
            where=f"step {order.identity.name}, {type(step).__module__}",
            hint="give every node the same source, or start again with what is there now",
        )
    return recipe, source


def _record_code(
    order: Order, store: Store, step: Step[Any], recipe: Recipe, source: CodeDigest | SourceDigest | None
) -> str | None:
    """Store the recipe, and the source of a user's step; return the digest of its modules, None for marin's own."""
    record = recipe.record if source is None else {**recipe.record, "definitions": source.definitions}
    store.write_recipe(order.identity.step_name, order.identity.fingerprint, record)
    if source is None or type(step).__module__.startswith("marin."):
        return None
    write_definitions(store.url, source.digest, source.texts)
    return write_modules(store.url, source.modules)


def _check_inputs(order: Order, step: Step[Any]) -> None:
    """Raise InputError when a pinned file is another one by now; some of marin's own check every byte as they read."""
    if order.pins and type(step).__module__ not in _CHECK_THEIR_INPUTS:
        check_unchanged(order.pins, memo=default_memo())


def _check_type(order: Order, step: Step[Any], artifact: object) -> None:
    declared = step.artifact_type()
    if not isinstance(artifact, declared):
        raise StepError(
            f"{type(step).__name__}.run returned {type(artifact).__name__}, and declares {declared.__name__}",
            where=f"step {order.identity.name}",
            hint=f"end with `return {declared.__name__}.write(ctx.output, ...)`",
        )


def _manifest(
    order: Order, store: Store, artifact: Artifact, started: datetime, context: RunContext, parents: dict[str, Manifest]
) -> Manifest:
    finished = datetime.now(UTC)
    identity, declared = order.identity, type(artifact)
    folder = store.attempt_folder(identity.step_name, identity.fingerprint, identity.attempt)
    contents = unplaced_contents(store, own_contents(store, artifact.contents, folder))
    return Manifest(
        fingerprint=identity.fingerprint,
        step=identity.step_name,
        artifact=declared.type_name(),
        artifact_schema=ARTIFACT_SCHEMA,
        files=contents.files,
        shards=contents.shards,
        meta=contents.meta,
        digest=output_digest(declared.type_name(), ARTIFACT_SCHEMA, contents),
        attempt=identity.attempt,
        epoch=order.epoch,
        run=identity.run,
        producer=replace(order.producer, host=socket.gethostname()),
        started=started.isoformat(timespec="seconds"),
        finished=finished.isoformat(timespec="seconds"),
        seconds=round((finished - started).total_seconds(), 3),
        resources=order.resources.model_dump(),
        metrics={name: value for name, value in context.metrics.items() if math.isfinite(value)},
        recipe=order.recipe,
        name=identity.name,
        source=order.source,
        parents=tuple(ParentRef(path, each.step, each.fingerprint, each.digest) for path, each in parents.items()),
    )
