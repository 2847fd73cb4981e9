"""Checkpoints of a run: written once, verified before use, found again after any crash.

    <url>/step-00001200.g003.9f2c/model.safetensors      never written twice
                                  optimizer.safetensors
                                  state.json             cursor, configuration, versions
                                  MANIFEST.json          sizes and digests; written last, create-only
                                  BAD.json, PIN.json     marks: found damaged; never to be removed

Invariant: what `newest` returns is complete and its every byte was compared with a digest before it was parsed. No
pickle anywhere. A folder that holds checkpoints never yields "none": either a good one, or a CheckpointError.
"""

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from blake3 import blake3
from torch import Tensor

from marin import fs
from marin.base.errors import CheckpointError
from marin.base.json import Json, dumps, pretty
from marin.model.weights import Sink, read_tensors, write_tensors
from marin.train.retention import Found, Keep, superfluous

SCHEMA = 1
MANIFEST = "MANIFEST.json"
STATE = "state.json"
BAD = "BAD.json"
PIN = "PIN.json"
_NAME = re.compile(r"step-(\d{8,})\.g(\d{3,})\.[0-9a-f]{4}")

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A verified checkpoint."""

    name: str
    tensors: dict[str, dict[str, Tensor]]
    """By file name without its ending: `model`, `optimizer`."""
    state: dict[str, Any]  # Any: the JSON that was saved

    @property
    def step(self) -> int:
        """Steps done so far."""
        return int(self.state["step"])


class _Told(NamedTuple):
    """A file open for writing that tells how much it has taken."""

    file: Sink
    told: Callable[[int], None]

    def write(self, data: Any, /) -> None:  # Any: anything with a buffer
        """Write a buffer whole."""
        self.file.write(data)
        self.told(memoryview(data).nbytes)


class Damaged(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


class Checkpoints:
    """The checkpoints of one run under a URL, of which `keep` says what stays."""

    def __init__(self, url: str, *, keep: Keep = Keep()) -> None:  # noqa: B008  a frozen value
        self.url = url
        self._keep = keep
        self._scores: dict[str, float | None] = {}

    def save(
        self,
        *,
        step: int,
        generation: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Json],
        may_commit: Callable[[], bool],
        score: float | None = None,
        told: Callable[[int], None] = lambda size: None,
    ) -> str:
        """Write a checkpoint and return its name; what is not to be kept is removed then.

        `score`: the loss on held-out sequences at this step. `told` is called with the bytes of each piece written.

        Raises CheckpointError, leaving nothing that counts, if `may_commit` says that a newer generation runs.
        """
        name = f"step-{step:08d}.g{generation:03d}.{secrets.token_hex(2)}"
        files: dict[str, Json] = {}
        for stem, members in tensors.items():
            with fs.write_stream(self._at(name, f"{stem}.safetensors")) as stream:
                write_tensors(_Told(stream, told), members)
            files[f"{stem}.safetensors"] = {"size": stream.written.size, "digest": stream.written.digest}
        written = fs.write(self._at(name, STATE), pretty(dict(state)).encode())
        files[STATE] = {"size": written.size, "digest": written.digest}
        if not may_commit():
            raise CheckpointError(
                f"a newer generation than {generation} of this run is at work, so this rank may not commit",
                where=self._at(name),
                hint="nothing is lost: look at the newer generation",
            )
        manifest: dict[str, Json] = {"schema": SCHEMA, "step": step, "generation": generation, "files": files}
        if score is not None:
            manifest["score"] = score
        if not fs.create(self._at(name, MANIFEST), pretty({**manifest, "checksum": _checksum(manifest)}).encode()):
            raise CheckpointError("this checkpoint exists already", where=self._at(name), hint="run the command again")
        self._prune()
        return name

    def newest(self) -> Loaded | None:
        """Return the newest checkpoint that is whole, or None in a folder where none was ever committed.

        A damaged one is marked bad, said loudly, and passed over. Raises CheckpointError if only damaged ones are left.
        """
        candidates = [found for found in self.found() if found.committed]
        for found in reversed(candidates):
            if found.bad:
                continue
            try:
                return self.load(found.name)
            except Damaged as error:
                log.warning("checkpoint %s is damaged and passed over: %s", error.where, error.what)
                fs.create(self._at(found.name, BAD), pretty({"reason": error.what}).encode())
        if candidates:
            raise CheckpointError(
                f"all {len(candidates)} checkpoints are damaged, and starting again from nothing is not done silently",
                where=self.url,
                hint="restore one of them from a backup, or delete the folder to train from the first step",
            )
        return None

    def load(self, name: str) -> Loaded:
        """Return the checkpoint called `name`; raises Damaged if a file is missing or not what was written."""
        tensors: dict[str, dict[str, Tensor]] = {}
        state: dict[str, Any] = {}
        for path, expected in self._manifest(name).items():
            data = self._verified(name, path, expected)
            if path == STATE:
                state = json.loads(data)
            else:
                tensors[path.removesuffix(".safetensors")] = read_tensors(data, where=self._at(name, path))
        return Loaded(name, tensors, state)

    def readable(self, *, at_most: int) -> Iterator[Loaded]:
        """Yield the good checkpoints up to a step, the newest first. Nothing is written: the run may be another's."""
        for found in reversed(self.found()):
            if found.good and found.step <= at_most:
                try:
                    yield self.load(found.name)
                except Damaged as error:
                    log.warning("checkpoint %s is damaged and passed over: %s", error.where, error.what)

    def take_over(self, other: "Checkpoints", name: str) -> None:
        """Copy a checkpoint of another folder into this one, verified; raises Damaged."""
        if fs.exists(self._at(name, MANIFEST)):
            return
        for path, expected in other._manifest(name).items():
            fs.write(self._at(name, path), other._verified(name, path, expected))
        fs.create(self._at(name, MANIFEST), fs.read(other._at(name, MANIFEST)))

    def pin(self, name: str) -> None:
        """Let a checkpoint stay whatever `keep` says; raises CheckpointError if there is none of that name."""
        if not fs.exists(self._at(name, MANIFEST)):
            names = ", ".join(each.name for each in self.found() if each.good) or "none"
            raise CheckpointError(
                f"there is no checkpoint {name}", where=self.url, hint=f"give the name of one of these: {names}"
            )
        fs.create(self._at(name, PIN), b"{}\n")

    def unpin(self, name: str) -> None:
        """Let a checkpoint make way when its time has come."""
        fs.delete(self._at(name, PIN))

    def found(self) -> list[Found]:
        """Return what looks like a checkpoint, oldest first."""
        marks = {entry.path for entry in fs.list_files(self.url)}
        found = []
        for name in fs.list_folder(self.url):
            if match := _NAME.fullmatch(name):
                committed, bad, pinned = (f"{name}/{mark}" in marks for mark in (MANIFEST, BAD, PIN))
                score = self._score(name) if committed and not bad and self._keep.best else None
                found.append(Found(int(match[1]), int(match[2]), name, committed, bad, pinned, score))
        return sorted(found)

    def _score(self, name: str) -> float | None:
        """Return the loss that a checkpoint's manifest names, read once; None where it cannot be read."""
        if name not in self._scores:
            try:
                self._scores[name] = self._record(name).get("score")
            except Damaged:
                self._scores[name] = None
        return self._scores[name]

    def _manifest(self, name: str) -> dict[str, dict[str, Any]]:
        files: dict[str, dict[str, Any]] = self._record(name)["files"]
        return files

    def _record(self, name: str) -> dict[str, Any]:  # Any: JSON of the manifest
        where = self._at(name, MANIFEST)
        try:
            record: dict[str, Any] = json.loads(fs.read(where))
            checksum = record.pop("checksum")
            whole = record["schema"] == SCHEMA and checksum == _checksum(record)
        except (fs.NotFound, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _damaged(f"its manifest cannot be read ({type(error).__name__})", where) from error
        if not whole:
            raise _damaged("its manifest is not what was written", where)
        return record

    def _verified(self, name: str, path: str, expected: Mapping[str, Any]) -> bytes:
        where = self._at(name, path)
        try:
            data = fs.read(where)
        except fs.NotFound as error:
            raise _damaged(f"{path} is missing", where) from error
        if len(data) != expected["size"]:
            raise _damaged(f"{path} has {len(data):,} bytes instead of {expected['size']:,}", where)
        digest = blake3(data, max_threads=blake3.AUTO).hexdigest()
        if digest != expected["digest"]:
            raise _damaged(f"{path} has the digest {digest[:16]} instead of {expected['digest'][:16]}", where)
        return data

    def _prune(self) -> None:
        """Remove what is not to be kept: the manifest first, so that nothing torn ever counts."""
        for each in superfluous(self.found(), self._keep):
            fs.delete(self._at(each.name, MANIFEST))
            fs.delete_folder(self._at(each.name))

    def _at(self, *parts: str) -> str:
        return fs.join(self.url, *parts)


def _checksum(record: Mapping[str, Json]) -> str:
    return hashlib.sha256(dumps(record).encode()).hexdigest()


def _damaged(what: str, where: str) -> Damaged:
    return Damaged(what, where=where, hint="the checkpoint before it is used")
