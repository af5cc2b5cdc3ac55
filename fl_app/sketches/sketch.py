"""Wire form of an update as one vector: all of it, some coordinates, or measurements."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from fl_app.sketches.flat import flatten, gather, scatter, unflatten
from fl_app.sketches.measurements import PartialCosines, draw_measurements, reconstruct
from fl_app.sketches.selection import largest
from fl_app.sketches.top import coordinate_count
from fl_app.types import Update
from fl_app.wire.random_set import draw_coordinates

logger = logging.getLogger(__name__)


class Sketch(Protocol):
    """A linear picture of an update: sketches may be added up before they are turned back."""

    @property
    def size(self) -> int:
        """Length of the vector."""
        ...

    @property
    def trained(self) -> Tensor | None:
        """The only coordinates that local training may move; None: all."""
        ...

    def take(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return the vector of ``update``."""
        ...

    def restore(self, values: Tensor, like: Mapping[str, Tensor]) -> Update:
        """Return an update that has these numbers, in the names, shapes and type of ``like``."""
        ...


Scheme = Callable[[int, int, Tensor | None], Sketch]
"""``scheme(n, seed, fixed)``: the sketch of ``n`` entries in a round; ``fixed``: agreed coordinates."""


@dataclass(frozen=True)
class Everything:
    """All entries: FL-STD."""

    size: int
    trained: None = None

    def take(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return all entries."""
        return flatten(update)

    def restore(self, values: Tensor, like: Mapping[str, Tensor]) -> Update:
        """Put all entries back."""
        return unflatten(values.to(next(iter(like.values()))), like)


@dataclass(frozen=True, eq=False)
class Chosen:
    """The entries at some coordinates: FL-TOP and FL-BASIC. The others are 0."""

    trained: Tensor

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.trained)

    def take(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return the entries at the coordinates."""
        return gather(update, self.trained)

    def restore(self, values: Tensor, like: Mapping[str, Tensor]) -> Update:
        """Put the entries back, among zeros."""
        return scatter(
            values, self.trained, {name: tensor.new_zeros(tensor.shape) for name, tensor in like.items()}
        )


@dataclass(frozen=True)
class Picked:
    """The entries at some coordinates of an update that was trained as a whole."""

    coordinates: Tensor
    trained: None = None

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.coordinates)

    def take(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return the entries at the coordinates."""
        return gather(update, self.coordinates)

    def restore(self, values: Tensor, like: Mapping[str, Tensor]) -> Update:
        """Put the entries back, among zeros."""
        return Chosen(self.coordinates).restore(values, like)


@dataclass(frozen=True)
class Votes:
    """A client's vote for coordinates: the ``count`` entries that changed most, as a vector of norm 1.

    However large a change is, its vote counts the same, and one client's votes have an L2 norm of exactly
    the bound that noise is measured by.
    """

    size: int
    count: int
    trained: None = None

    def take(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return the same positive number at each entry that is voted for, 0 elsewhere."""
        flat = flatten(update)
        return largest(flat, self.count).to(flat.dtype) / math.sqrt(self.count)

    def restore(self, values: Tensor, like: Mapping[str, Tensor]) -> Update:
        """Return the votes where they are for."""
        return unflatten(values.to(next(iter(like.values()))), like)


@dataclass(frozen=True, eq=False)
class Measured:
    """Random measurements of all entries: FL-CS."""

    operator: PartialCosines
    trained: None = None

    @property
    def size(self) -> int:
        """Number of measurements."""
        return len(self.operator.rows)

    def take(self, update: Mapping[str, Tensor]) -> Tensor:
        """Measure the update, with 32 bits at least."""
        return self.operator.measure(_single(flatten(update)))

    def restore(self, values: Tensor, like: Mapping[str, Tensor]) -> Update:
        """Find a sparse update with these measurements; this takes a while."""
        found = reconstruct(self.operator, _single(values))
        logger.info(
            "reconstruction from %d measurements: %d transforms, misfit %.2g, %s",
            self.size,
            found.transforms,
            found.misfit,
            "settled" if found.settled else "not settled",
        )
        return unflatten(found.vector.to(next(iter(like.values()))), like)


def _single(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.float16 else values


def everything() -> Scheme:
    """All entries."""
    return lambda n, seed, fixed: Everything(n)


def fixed_coordinates(share: float, vote: bool = False) -> Scheme:
    """The entries at the coordinates that were agreed on: ``share`` of all.

    If clients ``vote`` on them, their votes before that.
    """
    coordinate_count(share, 1)  # refuses what is no share

    def sketch(n: int, seed: int, fixed: Tensor | None) -> Sketch:
        count = coordinate_count(share, n)
        if fixed is None and vote:
            return Votes(n, count)
        if fixed is None or len(fixed) != count:
            came = "none" if fixed is None else f"{len(fixed)}"
            raise ValueError(f"fixed_coordinates: expected {count} agreed coordinates, got {came}")
        return Chosen(fixed)

    return sketch


def random_coordinates(share: float) -> Scheme:
    """Entries at ``share`` of the coordinates, drawn from each round's seed."""
    coordinate_count(share, 1)
    return _drawn_once(lambda n, seed: Chosen(draw_coordinates(n, coordinate_count(share, n), seed)))


def picked_coordinates(share: float) -> Scheme:
    """The same entries as those of `random_coordinates`, of an update that was trained as a whole."""
    coordinate_count(share, 1)
    return _drawn_once(lambda n, seed: Picked(draw_coordinates(n, coordinate_count(share, n), seed)))


def measurements(share: float) -> Scheme:
    """Measurements, as many as ``share`` of all entries, drawn from each round's seed."""
    coordinate_count(share, 1)
    return _drawn_once(lambda n, seed: Measured(draw_measurements(n, coordinate_count(share, n), seed)))


def _drawn_once(draw: Callable[[int, int], Sketch]) -> Scheme:
    """Return a scheme that draws by seed; the clients of one process share a round's draw."""
    drawn = lru_cache(maxsize=1)(draw)
    return lambda n, seed, fixed: drawn(n, seed)
