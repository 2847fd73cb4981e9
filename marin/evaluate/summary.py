"""From the per-item table of a task to its scores, each with its standard error and the number of items."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marin.base.errors import DataError
from marin.evaluate.canaries import chance
from marin.evaluate.choices import ItemRow
from marin.evaluate.task import Choices, Continuation, Form

Floats = NDArray[np.float64]


def summarise_task(form: Form, rows: Sequence[ItemRow]) -> dict[str, float]:
    """Return the scores of a task by name; `NAME_stderr` stands beside each where there are two items or more."""
    if not rows:
        raise DataError("there is no item to score", where="Task.items", hint="give a table with rows")
    scores: dict[str, float] = {"items": float(len(rows)), "cut_items": float(sum(row["cut"] > 0 for row in rows))}
    if isinstance(form.answer, Choices):
        for measure in ("acc", "acc_norm", "acc_per_token"):
            scores |= _mean(measure, [row[measure] for row in rows])
        scores |= _mean("choice_log_probability", [_choice_log_probability(row) for row in rows])
        scores["chance"] = sum(map(chance, rows)) / len(rows)
    elif isinstance(form.answer, Continuation):
        scores |= _mean("acc", [row["acc"] for row in rows])
        nats, tokens = (_gold(rows, name) for name in ("log_likelihoods", "tokens"))
        scores |= _ratio("loss", -nats, tokens)
        scores["perplexity"] = math.exp(min(scores["loss"], 700.0))
    else:
        scores |= _mean("exact_match", [row["acc"] for row in rows])
        return scores
    scores |= _ratio("bits_per_byte", -_gold(rows, "log_likelihoods") / math.log(2), _gold(rows, "bytes"))
    return scores


def _gold(rows: Sequence[ItemRow], name: str) -> Floats:
    return np.array([row[name][row["gold"]] for row in rows], dtype=np.float64)  # type: ignore[literal-required]


def _choice_log_probability(row: ItemRow) -> float:
    """Return the log-probability of the gold, in nats, when one of the choices must be it."""
    values = np.array(row["log_likelihoods"])
    return float(values[row["gold"]] - np.logaddexp.reduce(values))


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean, and the standard deviation of the sample over the root of its size."""
    found = {name: float(np.mean(values))}
    if len(values) > 1:
        found[f"{name}_stderr"] = float(np.std(values, ddof=1) / math.sqrt(len(values)))
    return found


def _ratio(name: str, parts: Floats, sizes: Floats) -> dict[str, float]:
    """Return sum(parts) / sum(sizes), and its standard error by linearisation (Cochran 1977, section 6.4)."""
    ratio, count = float(parts.sum() / sizes.sum()), len(parts)
    found = {name: ratio}
    if count > 1:
        spread = float(((parts - ratio * sizes) ** 2).sum())
        found[f"{name}_stderr"] = math.sqrt(count / (count - 1) * spread) / float(sizes.sum())
    return found
