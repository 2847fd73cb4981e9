"""Labels of a fastText classifier; the library is optional, so it is imported where a model is opened.

Invariant: probabilities are rounded to six digits, below which machines differ.
"""

import importlib.util
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from marin import fs
from marin.base.errors import ConfigurationError, DataError, did_you_mean
from marin.base.lazy import LazyModule
from marin.data.scorers import FastText
from marin.graph.files import FileRef

fasttext = LazyModule("fasttext")

DIGITS = 6
_PREFIX = "__label__"


def score_fasttext(text: str, scorer: FastText, file: FileRef) -> dict[str, float]:
    """Return the probability of each label of `scorer`, by the model in `file`."""
    model = open_model(file)
    # `predict` of the package fails under numpy 2; what it wraps returns pairs of probability and label.
    found = {
        label.removeprefix(_PREFIX): chance for chance, label in model.f.predict(_one_line(text), -1, 0.0, "strict")
    }
    return {f"{scorer.name}_{label}": round(min(found.get(label, 0.0), 1.0), DIGITS) for label in scorer.labels}


def check_labels(scorer: FastText, file: FileRef) -> None:
    """Raise DataError when the model does not know a label of `scorer`."""
    known = [label.removeprefix(_PREFIX) for label in open_model(file).get_labels()]
    for label in scorer.labels:
        if label not in known:
            hint = did_you_mean(label, known) or f"it has {', '.join(sorted(known)[:20])}"
            raise DataError(f"the model `{file.path}` has no label {label!r}", where="FastText.labels", hint=hint)


@lru_cache(maxsize=2)
def open_model(file: FileRef) -> Any:  # Any: the library has no types
    """Return the model of a file, kept in memory; DataError when it is none, ConfigurationError without the library."""
    if importlib.util.find_spec("fasttext") is None:
        raise ConfigurationError(
            "FastText needs the package `fasttext`, which is not installed",
            where="FastText",
            hint="pip install fasttext, on every machine that runs the step",
        )
    path = fs.local_path(file.url)
    try:
        if path is not None:
            fs.check_file(file)
            return fasttext.load_model(str(path))
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "model.bin")
            copy.write_bytes(fs.read_file(file))
            return fasttext.load_model(str(copy))
    except ValueError as error:
        raise DataError(
            f"`{file.path}` is no fastText model: {error}", where=file.url, hint="give a `.bin` or `.ftz` file"
        ) from error


def _one_line(text: str) -> str:
    return " ".join(text.replace("\0", " ").split("\n")) + "\n"
