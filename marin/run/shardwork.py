"""The worker's side of a map: run a group of shards one after the other, commit each on its own.

Invariant: a shard is committed the moment it is done, so that a worker's death costs at most the shard in hand; one
shard's exception never stops the next. It knows no Ray.
"""

import contextlib
import inspect
import io
import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from marin.base.errors import DataError, StepError
from marin.base.json import Json, dumps
from marin.graph.files import Shard
from marin.graph.recipe import shard_fingerprint
from marin.run.failure import explain
from marin.run.order import GroupReport, ShardGroup, ShardReport, unpack
from marin.store import EventWriter, ShardCache, Store

PRINTED_CHARS = 16_000
SHARD_HINT = "run the same command again once it is mended: the other shards are kept"


def run_group(group: ShardGroup) -> GroupReport:
    """Run every shard of the group that is not committed yet and report each."""
    identity = group.identity
    step_class, fn, config = unpack(group.call)
    cache = Store.open(identity.store, write=True).shards
    writer = EventWriter(identity.store, identity.run, f"{identity.attempt}-{uuid.uuid4().hex[:8]}")
    printed = io.StringIO()
    try:
        names = [shard.name for _, shard in group.shards]
        place = {"pid": os.getpid(), "host": socket.gethostname(), "shard": names[0], "shards": len(names)}
        writer.emit("placement", **identity.event_fields, **place)
        _check_code(group, step_class, fn, config)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            call = partial(fn, **config)
            wants_output = "output" in inspect.signature(fn).parameters
            reports = [
                _run_shard(call, wants_output, (key, shard), cache, identity.attempt) for key, shard in group.shards
            ]
    finally:
        writer.close()
    return GroupReport(tuple(reports), printed.getvalue()[-PRINTED_CHARS:])


def _run_shard(
    call: Callable[..., Json], wants_output: bool, keyed: tuple[str, Shard], cache: ShardCache, attempt: str
) -> ShardReport:
    fingerprint, shard = keyed
    try:
        output = cache.output(fingerprint, attempt)
        value = call(shard, output=output) if wants_output else call(shard)
        committed = cache.commit(fingerprint, shard.name, output, _as_json(value, shard))
    except Exception as error:  # noqa: BLE001  the boundary: user code may raise anything, and the map goes on
        return ShardReport(fingerprint, failure=explain(error, hint=SHARD_HINT))
    return ShardReport(fingerprint, shard=committed)


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
