"""Model between the weights before and after local training: the course of a surrogate attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

PLACE = "surrogate.place"
"""Name of the variable that says where between the two models the gradient is taken."""

RATE = 0.1
"""Change of the place in units of its variable: it moves more slowly than pixels do."""


@dataclass(frozen=True, eq=False)
class Between:
    """Straight way of the weights during local training, which an update of the client tells."""

    delta: Mapping[str, Tensor]
    """Weights after minus weights before, by name."""
