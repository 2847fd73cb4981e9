"""Curves made small enough to draw: buckets keep their extremes, so that no spike is lost."""

from collections.abc import Sequence

Point = tuple[float, float]

MOST_POINTS = 2000


def downsample(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` points: the lowest and the highest of each bucket of equal count, in order of x."""
    if len(points) <= most:
        return list(points)
    buckets = max(1, most // 2)
    kept: list[Point] = []
    for bucket in range(buckets):
        members = points[len(points) * bucket // buckets : len(points) * (bucket + 1) // buckets]
        kept += sorted({min(members, key=lambda point: point[1]), max(members, key=lambda point: point[1])})
    return kept
