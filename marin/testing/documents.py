"""Tiny inputs for tests of a user's own steps."""

from marin.graph.artifact import Documents
from marin.graph.step import Step
from marin.steps.records import Records


def words(*texts: str) -> Step[Documents]:
    """Return a step whose documents are these texts, in order.

    `marin.run(CountWords(documents=words("a b a")), store=tmp_path, backend="inline")` runs a step on them.
    """
    return Records(texts=texts)
