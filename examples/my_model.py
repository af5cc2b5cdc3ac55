"""A model of one's own: one hidden layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def one_hidden_layer(num_classes: int, in_shape: Sequence[int], width: int) -> nn.Module:
    """Return the model; the number of classes and the shape of a sample are those of the data."""
    if width < 1:
        raise ValueError(f"one_hidden_layer: width must be at least 1, got {width}")
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(in_shape), width),
        nn.ReLU(),
        nn.Linear(width, num_classes),
    )
