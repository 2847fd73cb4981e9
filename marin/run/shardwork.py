"""The worker's side of a map: run a group of shards one after the other, commit each on its own.

Invariant: a shard is committed the moment it is done, so that a worker's death costs at most the shard in hand; one
shard's exception never stops the next. A shard that takes long is spoken of while it runs. Once the run is asked to
stop, the shard in hand is the last; so it is when storage does not answer, which is no shard's fault. It knows no Ray.
"""

import contextlib
import inspect
import io
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from marin import fs
from marin.base.errors import DataError, StepError
from marin.base.json import Json, dumps
from marin.graph.files import Shard
from marin.graph.recipe import shard_fingerprint
from marin.run.failure import explain, user_errors
from marin.run.order import GroupReport, ShardGroup, ShardReport, unpack
from marin.run.retry import Cause
from marin.store import EventWriter, ShardCache, StopWatch, Store

PRINTED_CHARS = 16_000
LONG_SECONDS = 5.0
"""A shard that runs for so long is spoken of; whoever shows it knows what is usual."""
SHARD_HINT = "run the same command again once it is mended: the other shards are kept"


def run_group(group: ShardGroup, *, own_process: bool) -> GroupReport:
    """Run every shard of the group that is not committed yet and report each."""
    user = user_errors(own_process)
    identity = group.identity
    step_class, fn, config = unpack(group.call)
    cache = Store.open(identity.store, write=True).shards
    writer = EventWriter(identity.store, identity.run, f"{identity.attempt}-{uuid.uuid4().hex[:8]}")
    printed = io.StringIO()
    reports: list[ShardReport] = []
    silent: fs.Unavailable | None = None
    stop = StopWatch(identity.store, identity.run)
    host, pid = socket.gethostname(), os.getpid()

    def emit(kind: str, **fields: Any) -> None:  # Any: JSON of the event
        writer.emit(kind, **identity.event_fields, host=host, **fields)

    try:
        emit("placement", pid=pid, shard=group.shards[0][1].name, shards=len(group.shards))
        _check_code(group, step_class, fn, config)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), _in_hand(emit) as take:
            call = partial(fn, **config)
            wants_output = "output" in inspect.signature(fn).parameters
            for key, shard in group.shards:
                if stop.asked:
                    break
                with take(shard.name) as took:
                    report = _run_shard(call, wants_output, (key, shard), cache, identity.attempt, user)
                reports.append(replace(report, seconds=took()))
    except fs.Unavailable as error:
        silent = error
    finally:
        writer.close()
    text, worker = printed.getvalue()[-PRINTED_CHARS:], f"{host}, process {pid}"
    if silent is not None:
        message = f"{silent.what}, seen on {host}"
        return GroupReport(printed=text, worker=worker, cause=Cause.LOST, message=message, hint=silent.hint)
    return GroupReport(tuple(reports), text, worker=worker, stopped=len(reports) < len(group.shards))


def _run_shard(
    call: Callable[..., Json],
    wants_output: bool,
    keyed: tuple[str, Shard],
    cache: ShardCache,
    attempt: str,
    user: tuple[type[BaseException], ...],
) -> ShardReport:
    fingerprint, shard = keyed
    try:
        output = cache.output(fingerprint, attempt)
        value = call(shard, output=output) if wants_output else call(shard)
        committed = cache.commit(fingerprint, shard.name, output, _as_json(value, shard))
    except fs.Unavailable:
        raise
    except user as error:  # the boundary: user code may raise anything, and the map goes on
        return ShardReport(fingerprint, failure=explain(error, hint=SHARD_HINT))
    return ShardReport(fingerprint, shard=committed)


@contextlib.contextmanager
def _in_hand(emit: Callable[..., None]) -> Iterator["_Hand"]:
    """Give what notes the shard in hand; events say which takes long, and when it has ended."""
    hand = _Hand(emit)
    thread = threading.Thread(target=hand.watch, name="shards", daemon=True)
    thread.start()
    try:
        yield hand
    finally:
        hand.ended.set()
        thread.join()


class _Hand:
    """The shard that is run now. One thread watches a whole group: a shard may take a millisecond."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self.ended = threading.Event()
        self._emit = emit
        self._held: tuple[str, float, str] | None = None
        self._spoken: str | None = None

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[Callable[[], float]]:
        began = time.monotonic()
        self._held = name, began, datetime.now(UTC).isoformat(timespec="seconds")
        try:
            yield lambda: time.monotonic() - began
        finally:
            self._held = None
            if self._spoken == name:
                self._emit("shard", shard=name, ended=True)

    def watch(self) -> None:
        """Speak once of each shard that takes long."""
        while not self.ended.wait(LONG_SECONDS / 5):
            held = self._held
            if held is not None and held[0] != self._spoken and time.monotonic() - held[1] >= LONG_SECONDS:
                self._spoken = held[0]
                self._emit("shard", shard=held[0], since=held[2])


def _as_json(value: object, shard: Shard) -> Json:
    try:
        plain: Json = json.loads(dumps(value))  # type: ignore[arg-type]  # what is no JSON raises
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the function returned {type(value).__name__}, which is no JSON: {error}",
            where=f"shard {shard.name}",
            hint="return numbers, text, lists and dicts; write the rest to `output`",
        ) from error
    return plain


def _check_code(group: ShardGroup, step_class: type[Any], fn: Callable[..., Json], config: Mapping[str, Any]) -> None:
    """Raise if this worker's source of the function differs from the one the map was planned with."""
    planned, shard = group.shards[0]
    if shard_fingerprint(step_class, fn, config, shard) != planned:
        raise StepError(
            f"the code of {fn.__module__}.{fn.__qualname__} on {socket.gethostname()} differs from the plan's",
            where=f"step {group.identity.name}",
            hint="give every node the same source, or restart the run with what is there now",
        )
