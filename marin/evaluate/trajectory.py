"""Scores along a training, as points and as one self-contained page with a curve of each metric.

Invariant: every point is a score of a checkpoint artifact, with how many tokens that had seen; nothing is interpolated.
Pure but for reading the scores: text in, text out.
"""

import html
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from marin.base.errors import DataError, did_you_mean
from marin.base.json import Json
from marin.base.units import format_count
from marin.graph.artifact import Checkpoint, Scores

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 40
_TICKS = 4
_STYLE = """:root{color-scheme:light dark;--ink:#222;--faint:#ccc;--curve:#2b6cb0;--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--faint:#444;--curve:#7fb0de;--page:#161616}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page)}
body{max-width:760px;margin:2em auto;padding:0 1em}
svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
.grid{stroke:var(--faint)}.curve{stroke:var(--curve);fill:none;stroke-width:2}.dot{fill:var(--curve)}
.spread{stroke:var(--curve);opacity:.5}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .8em;text-align:right}
th{border-bottom:1px solid var(--faint)}"""


class Point(NamedTuple):
    """The scores of one checkpoint."""

    step: int
    tokens: int
    values: dict[str, float]
    spreads: dict[str, tuple[float, float]]
    """95 % intervals of the metrics that have one."""

    def to_json(self) -> dict[str, Json]:
        """Return the object of `trajectory.json`."""
        spreads: dict[str, Json] = {name: list(spread) for name, spread in self.spreads.items()}
        return {"step": self.step, "tokens": self.tokens, "metrics": dict(self.values), "intervals": spreads}


def read_point(checkpoint: Checkpoint, scores: Scores, metrics: Sequence[str]) -> Point:
    """Return what a checkpoint has scored; raises DataError if it is of no training, or lacks one of the metrics."""
    if not {"steps", "tokens"} <= set(checkpoint.meta):
        raise DataError(
            "a checkpoint does not say after how many tokens it was made",
            where="Trajectory.scores",
            hint="give scores of `Train(...)` and its `at_step(...)`",
        )
    record = json.loads(scores.contents.reader.read(scores.file("scores.json")))
    values, spreads = {}, {}
    for metric in metrics:
        if metric not in scores.metrics:
            hint = did_you_mean(metric, scores.metrics) or f"there are {', '.join(sorted(scores.metrics))}"
            raise DataError(f"the scores have no metric `{metric}`", where="Trajectory.metrics", hint=hint)
        values[metric] = scores.metrics[metric]
        if spread := _spread(record, metric, values[metric]):
            spreads[metric] = spread
    return Point(int(checkpoint.meta["steps"]), int(checkpoint.meta["tokens"]), values, spreads)


def _spread(record: dict[str, Any], metric: str, value: float) -> tuple[float, float] | None:  # Any: JSON
    """Return the 95 % interval that the scores state, or that of their standard error."""
    if interval := record.get(f"{metric}_interval"):
        return float(interval[0]), float(interval[1])
    error = record["metrics"].get(f"{metric}_stderr")
    return None if error is None else (value - 1.96 * error, value + 1.96 * error)


def page(points: Sequence[Point], metrics: Sequence[str]) -> str:
    """Return the page: a curve of each metric over tokens, and the numbers."""
    shown = ", ".join(map(_words, metrics))
    title = f"{shown} at {len(points)} checkpoints"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><h1>{_text(title)}</h1>",
        *(f"<h2>{_text(_words(metric))}</h2>{picture(points, metric)}" for metric in metrics),
        _table(points, metrics),
        "<p>Bars: 95 % intervals over what was scored, where the scores have them.</p></body></html>",
    ]
    return "\n".join(parts) + "\n"


def picture(points: Sequence[Point], metric: str) -> str:
    """Return the curve of one metric over tokens as SVG; a value that is no number is left out."""
    drawn = [point for point in points if math.isfinite(point.values[metric])]
    if not drawn:
        return "<p>No value is a number.</p>"
    ends = [end for point in drawn for end in (point.values[metric], *point.spreads.get(metric, ()))]
    low, high = _range([end for end in ends if math.isfinite(end)])
    left, right = _range([point.tokens for point in drawn])

    def across(tokens: float) -> float:
        return _LEFT + (tokens - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def down(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in range(_TICKS + 1):
        value, tokens = low + (high - low) * tick / _TICKS, left + (right - left) * tick / _TICKS
        x, y = across(tokens), down(value)
        anchor = "start" if not tick else "end" if tick == _TICKS else "middle"
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>',
            f'<text x="{x:.1f}" y="{_HEIGHT - 20}" text-anchor="{anchor}">{format_count(tokens)}</text>',
        ]
    parts.append(f'<text x="{_WIDTH / 2:g}" y="{_HEIGHT - 3}" text-anchor="middle">tokens</text>')
    places = [(across(point.tokens), down(point.values[metric]), point) for point in drawn]
    parts.append(f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)}"/>')
    for x, y, point in places:
        if spread := point.spreads.get(metric):
            top, bottom = down(spread[1]), down(spread[0])
            parts.append(f'<line class="spread" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        told = f"step {point.step:,}, {point.tokens:,} tokens: {point.values[metric]:.5g}"
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{told}</title></circle>')
    label = _text(f"{_words(metric)} over tokens")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">\n' + "\n".join(parts) + "\n</svg>"


def _table(points: Sequence[Point], metrics: Sequence[str]) -> str:
    heads = "".join(f"<th>{_text(name)}</th>" for name in ("step", "tokens", *map(_words, metrics)))
    rows = [
        f"<tr><td>{point.step:,}</td><td>{point.tokens:,}</td>"
        + "".join(f"<td>{point.values[metric]:.5g}</td>" for metric in metrics)
        + "</tr>"
        for point in points
    ]
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _text(text: str) -> str:
    return html.escape(text)
