"""A curve in the terminal, drawn with Braille dots: two across and four down in each character."""

import itertools
import math
from collections.abc import Sequence

from marin.base.units import format_count
from marin.view.curve import Point, downsample

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def draw_curve(points: Sequence[Point], *, width: int = 64, height: int = 10, x_name: str = "tokens") -> list[str]:
    """Return the lines of a plot of finite points, with the range of both axes; no lines for fewer than two."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) < 2:
        return []
    drawn = downsample(finite, 4 * width)
    (left, right), (low, high) = _range([x for x, _ in drawn]), _range([y for _, y in drawn])
    cells = [[0] * width for _ in range(height)]
    for x, y in _joined([(_scale(x, left, right, 2 * width), _scale(y, low, high, 4 * height)) for x, y in drawn]):
        row = 4 * height - 1 - y
        cells[row // 4][x // 2] |= _DOTS[row % 4][x % 2]
    labels = {0: f"{high:.2f}", height - 1: f"{low:.2f}"}
    gutter = max(map(len, labels.values()))
    lines = [
        f"{labels.get(row, ''):>{gutter}} ┤{''.join(chr(0x2800 + cell) if cell else ' ' for cell in line)}".rstrip()
        for row, line in enumerate(cells)
    ]
    start, end = format_count(left), f"{format_count(right)} {x_name}"
    return [*lines, f"{'':>{gutter}} └{start}{end:>{max(1, width - len(start))}}"]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _scale(value: float, low: float, high: float, size: int) -> int:
    return min(size - 1, int((value - low) / (high - low) * size))


def _joined(dots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Fill the gaps between neighbours, so that the curve is a line."""
    joined = list(dots[:1])
    for (x0, y0), (x1, y1) in itertools.pairwise(dots):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        joined += [(x0 + (x1 - x0) * i // steps, y0 + (y1 - y0) * i // steps) for i in range(1, steps + 1)]
    return joined
