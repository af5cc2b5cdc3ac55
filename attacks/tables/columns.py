"""Columns of a table behind the entries of its rows: numbers, and categories of one entry per value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

IS = "="
"""Separates the column from the value in the name of a category's entry."""


@dataclass(frozen=True)
class Columns:
    """Places of numbers, and those of the values of each category."""

    numbers: tuple[int, ...]
    categories: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Columns:
        """Read the names of a row's entries: ``age``, or ``sex=male`` and ``sex=female``."""
        numbers: list[int] = []
        categories: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            column, separator, _ = name.partition(IS)
            if separator:
                categories.setdefault(column, []).append(place)
            else:
                numbers.append(place)
        return cls(tuple(numbers), tuple((name, tuple(places)) for name, places in categories.items()))

    @property
    def width(self) -> int:
        """Number of entries of a row."""
        return len(self.numbers) + sum(len(places) for _, places in self.categories)

    def relaxed(self, raw: Tensor) -> Tensor:
        """Return rows (..., F) whose categories are shares that sum to one."""
        parts = [(places, raw[..., list(places)].softmax(dim=-1)) for _, places in self.categories]
        order = [*self.numbers, *(place for places, _ in parts for place in places)]
        joined = torch.cat([raw[..., list(self.numbers)], *(part for _, part in parts)], dim=-1)
        back = torch.tensor(order).argsort()
        rows: Tensor = joined[..., back]
        return rows

    def settled(self, rows: Tensor) -> Tensor:
        """Return rows whose categories have their likeliest value."""
        found = rows.clone()
        for _, places in self.categories:
            part = rows[..., list(places)]
            best = torch.zeros_like(part).scatter(-1, part.argmax(dim=-1, keepdim=True), 1.0)
            found[..., list(places)] = best
        return found
