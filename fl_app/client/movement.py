"""How far a model has moved between two orders, tensor by tensor."""

from __future__ import annotations

import math

from fl_app.transforms import norm
from fl_app.types import Update

SLACK_OF_VECTORS = 4.0
"""Biases start at or near 0: they may move by as many times the size of the model's entries on average."""


def movement(before: Update, after: Update) -> float:
    """Return the largest move of any tensor, relative to its size before.

    A tensor's size is its norm, or what it would be if its entries were as large as the whole model's on
    average, whichever is more: a tensor that starts at 0 may move, too. A server that reads samples out moves
    few entries far, such as all biases of a layer, which a norm of the whole model would hide.
    """
    entries = sum(tensor.numel() for tensor in before.values())
    typical = norm(list(before.values())) / math.sqrt(max(1, entries))
    largest = 0.0
    for name, old in before.items():
        slack = SLACK_OF_VECTORS if old.ndim <= 1 else 1.0
        size = max(norm([old]), slack * typical * math.sqrt(old.numel()))
        moved = norm([after[name] - old])
        if not math.isfinite(moved):
            return math.inf
        if moved:
            largest = max(largest, moved / size if size else math.inf)
    return largest
