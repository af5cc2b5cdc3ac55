"""Bounds of what a page shows of a long run: rows and points at even distances, first and last included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

MOST_ROWS = 1000
MOST_POINTS = 2000
"""More than a chart has pixels across."""
_Item = TypeVar("_Item")


def thinned(items: Sequence[_Item], most: int) -> Sequence[_Item]:
    """Return at most ``most`` of the items, in order."""
    if len(items) <= most:
        return items
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]


def extremes(points: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    """Return at most ``most`` of the points of a line: the lowest and the highest of each stretch."""
    if len(points) <= most:
        return points
    kept: list[tuple[float, float]] = []
    stretches = most // 2
    for number in range(stretches):
        start, end = (edge * len(points) // stretches for edge in (number, number + 1))
        stretch = points[start:end]
        kept += sorted({min(stretch, key=_height), max(stretch, key=_height)})
    return kept


def _height(point: tuple[float, float]) -> float:
    return point[1]
