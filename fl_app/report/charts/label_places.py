"""Placement of labels beside their bubbles without overlaps; a label that fits nowhere is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_GAP = 4.0
_FAR = (0.0, 10.0, 22.0, 36.0, 52.0)
"""Further distances that a label may move, with a line to its bubble."""

_SIDES = tuple((math.cos(turn), math.sin(turn)) for turn in (k * math.pi / 8 for k in range(16)))


class Box(NamedTuple):
    """A rectangle; y goes down."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Return whether the two share more than their edges."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        """Return whether the other one lies within."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


class Bubble(NamedTuple):
    """Bubble to be labelled."""

    x: float
    y: float
    radius: float

    @property
    def box(self) -> Box:
        """The square around it."""
        return Box(self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius)


class Place(NamedTuple):
    """Position and text chosen for a label."""

    box: Box
    choice: int
    away: bool
    """True if it needs a line to its bubble."""


def place_labels(
    bubbles: Sequence[Bubble],
    sizes: Sequence[Sequence[tuple[float, float]]],
    *,
    inside: Box,
    order: Iterable[int],
    lines: Sequence[Box] = (),
) -> list[Place | None]:
    """Give every label, in this order, the nearest place where it covers nothing.

    ``sizes`` holds for each bubble the width and height of its texts, the best one first;
    the next one is tried where no place is left for the ones before it. ``lines`` are crossed only
    by a label that has no other place.
    """
    taken = [bubble.box for bubble in bubbles]
    places: list[Place | None] = [None] * len(bubbles)
    for i in order:
        places[i] = next(
            (
                Place(box, choice, far > 0)
                for crossed in (lines, ())
                for choice, (width, height) in enumerate(sizes[i])
                for far in _FAR
                for side in _SIDES
                if inside.holds(box := _beside(bubbles[i], width, height, far, side))
                and not any(box.meets(other) for other in (*taken, *crossed))
            ),
            None,
        )
        if (place := places[i]) is not None:
            taken.append(place.box)
    return places


def _beside(bubble: Bubble, width: float, height: float, far: float, side: tuple[float, float]) -> Box:
    reach = bubble.radius + _GAP + far
    x, y = bubble.x + reach * side[0], bubble.y + reach * side[1]
    # the box touches the circle of that reach with the edge or corner that faces the bubble
    left = x - width * (1 - side[0]) / 2
    top = y - height * (1 - side[1]) / 2
    return Box(left, top, left + width, top + height)
