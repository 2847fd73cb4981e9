"""Artifact types: the typed, immutable outputs of steps.

Light by design: an artifact is a handle on files. `Value`, `Folder` and `Table` read and write themselves through
the doors of `marin.graph.files`; what is inside the others is read by `marin.data`, `marin.train` and so on.
A type of one's own subclasses `Artifact` and gives `write`, and `open` where a handle should hold more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from pydantic import TypeAdapter

from marin.base.json import Json, pretty
from marin.base.lazy import LazyModule
from marin.graph.files import Contents, FileRef, Output, Shard, find_file

pyarrow = LazyModule("pyarrow")
parquet = LazyModule("pyarrow.parquet")

T = TypeVar("T")


@dataclass(frozen=True)
class Artifact:
    """Typed, immutable output of a step."""

    contents: Contents

    @classmethod
    def open(cls, contents: Contents) -> Self:
        """Return the handle for committed contents."""
        return cls(contents)

    @classmethod
    def type_name(cls) -> str:
        """Return the name under which manifests record this type."""
        return cls.__name__

    @property
    def digest(self) -> str:
        """The output digest: equal bytes give equal digests. Empty before the commit."""
        return self.contents.digest

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, in order, for `ctx.map`."""
        return self.contents.shards

    @property
    def meta(self) -> Mapping[str, Any]:  # Any: JSON that the step wrote
        """The small JSON record that the step wrote beside the files."""
        return self.contents.meta if isinstance(self.contents.meta, Mapping) else {}

    def file(self, path: str) -> FileRef:
        """Return the artifact's own file called `path`."""
        return self.contents.file(path)

    def __repr__(self) -> str:
        size = sum(file.size for file in self.contents.files) + sum(f.size for s in self.shards for f in s.files)
        return f"{type(self).__name__}({self.digest[:8] or 'uncommitted'}, {len(self.shards)} shards, {size:,} bytes)"


class Value(Artifact, Generic[T]):
    """A JSON-able or pydantic value, in `value.json`."""

    @classmethod
    def write(cls, output: Output, value: T) -> "Value[T]":
        """Write `value` as JSON; raises pydantic's serialisation error for what is not JSON-able."""
        data = TypeAdapter(type(value)).dump_python(value, mode="json")
        output.write("value.json", pretty(data).encode())
        return cls(output.contents())

    @property
    def value(self) -> T:
        """The value as JSON gives it back: tuples return as lists, models as dicts."""
        loaded: T = json.loads(self.contents.reader.read(self.file("value.json")))
        return loaded


class Folder(Artifact):
    """Any files, as the step wrote them; those of its shards are files of the folder as well."""

    @classmethod
    def write(cls, output: Output, *, shards: Sequence[Shard] = (), meta: Json = None) -> Self:
        """Return the folder of all that has been written to `output` and in `shards`."""
        return cls(output.contents(shards=shards, meta=meta))

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All files, sorted by path."""
        below = (file for shard in self.shards for file in shard.files)
        return tuple(sorted((*self.contents.files, *below), key=lambda file: file.path))

    def file(self, path: str) -> FileRef:
        """Return the file called `path`; KeyError names what there is."""
        return find_file(self.files, path)

    def read(self, path: str) -> bytes:
        """Return the bytes of one file."""
        return self.contents.reader.read(self.file(path))


class Table(Artifact):
    """Rows and columns, as one Parquet file `table.parquet`."""

    @classmethod
    def write(cls, output: Output, rows: Any) -> Self:  # Any: pyarrow is not imported at planning time
        """Write a pyarrow Table, a list of row dicts, or a dict.

        A dict of lists is columns; a dict of scalars (`{"a": 2, "b": 1}`) becomes columns `key` and `value`.
        """
        if isinstance(rows, Mapping) and not all(isinstance(column, list) for column in rows.values()):
            rows = {"key": list(rows), "value": list(rows.values())}
        if isinstance(rows, Mapping):
            rows = pyarrow.table(rows)
        elif isinstance(rows, Sequence):
            rows = pyarrow.Table.from_pylist(list(rows))
        with output.open("table.parquet") as file:
            parquet.write_table(rows, file, compression="zstd")
        return cls(output.contents())

    def to_arrow(self) -> Any:  # Any: a pyarrow.Table
        """Return the rows as a pyarrow Table."""
        # No threads and no reading ahead: a thread of Arrow's with a Python buffer aborts the process when that ends,
        # and a run that was done exits with 134 (1 of 50 short programs, pyarrow 26).
        with (
            self.contents.reader.open(self.file("table.parquet")) as file,
            parquet.ParquetFile(file, pre_buffer=False) as table,
        ):
            return table.read(use_threads=False)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a list of row dicts."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows

    def to_dict(self) -> dict[Any, Any]:
        """Return `{key: value}` for a table of two columns, otherwise `{column: values}`."""
        table = self.to_arrow()
        if table.column_names == ["key", "value"]:
            return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        columns: dict[Any, Any] = table.to_pydict()
        return columns

    def to_pandas(self) -> Any:  # Any: a pandas.DataFrame
        """Return the rows as a pandas DataFrame (needs pandas)."""
        return self.to_arrow().to_pandas()


class Sharded(Artifact):
    """Base of artifacts whose substance is their shards, with a meta record and perhaps a few files beside."""

    @classmethod
    def write(cls, output: Output, *, shards: Sequence[Shard], meta: Json = None) -> Self:
        """Return the artifact of `shards` and of all that has been written to `output`."""
        return cls(output.contents(shards=shards, meta=meta))


class Documents(Sharded):
    """Text: one Parquet file `documents.parquet` a shard, columns id, text, source, meta."""


class Annotations(Sharded):
    """Scores of documents: one Parquet file `annotations.parquet` a shard, a row a document, a float column a score."""


class Tokenizer(Artifact):
    """A Hugging Face `tokenizer.json`, keyed by its bytes."""

    @classmethod
    def write(cls, output: Output, data: bytes, *, meta: Json = None) -> Self:
        """Write the bytes of a `tokenizer.json`."""
        output.write("tokenizer.json", data)
        return cls(output.contents(meta=meta))

    def read(self) -> bytes:
        """Return the bytes of `tokenizer.json`."""
        return self.contents.reader.read(self.file("tokenizer.json"))


class Tokens(Sharded):
    """Token ids: `tokens.npy` (flat) and `index.arrow` (document ends, ids) a shard, and `tokenizer.json`."""


class Sequences(Sharded):
    """Shuffled, packed token ids, ready for training, and the `tokenizer.json` that made them."""


class Checkpoint(Artifact):
    """Weights of a training run (`model.safetensors`, `config.json`), its record and `tokenizer.json`."""

    @classmethod
    def write(cls, output: Output, *, meta: Json = None) -> Self:
        """Return the checkpoint of all that has been written to `output`."""
        return cls(output.contents(meta=meta))


class Scores(Artifact):
    """Named numbers in `scores.json`: `{"metrics": {name: number}, ...details}`."""

    @classmethod
    def write(cls, output: Output, metrics: Mapping[str, float], *, details: Mapping[str, Json] | None = None) -> Self:
        """Write the scores; `metrics` are what `Pick` and the screens compare."""
        output.write("scores.json", pretty({"metrics": dict(metrics), **(details or {})}).encode())
        return cls(output.contents(meta={"metrics": dict(metrics)}))

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers by name."""
        return dict(self.meta["metrics"])


class ModelFolder(Artifact):
    """An export that other tools take as it is."""

    @classmethod
    def write(cls, output: Output, *, meta: Json = None) -> Self:
        """Return the folder of all that has been written to `output`."""
        return cls(output.contents(meta=meta))
