"""Movement of a model between two orders, tensor by tensor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl_app.transforms import norm
from fl_app.types import Update

SHARE_OF_A_SIGNAL = 0.25
"""The move of a bias that counts as 1, over the size of the signals that it is added to."""


def movement(before: Update, after: Update) -> float:
    """Return the largest move of any tensor, relative to its size before.

    A weight's size is its norm. A bias counts by the signals that it is added to, which its layer's
    weights make of inputs of size 1: a server that reads samples out moves the biases of a layer together
    across those signals, and its first model may have biases of any size.
    """
    largest = 0.0
    for name, old in before.items():
        moved, size = norm([after[name] - old]), _size(name, old, before)
        if not math.isfinite(moved):
            return math.inf
        if moved:
            largest = max(largest, moved / size if size else math.inf)
    return largest


def _size(name: str, tensor: Tensor, model: Update) -> float:
    path, _, last = name.rpartition(".")
    weights = model.get(f"{path}.{last.replace('bias', 'weight')}".lstrip("."))
    if not last.startswith("bias") or weights is None:
        return norm([tensor]) or _typical(model) * math.sqrt(tensor.numel())
    inputs = weights[0].numel() if weights.ndim > 1 else 1
    signal = norm([weights]) / math.sqrt(weights.numel()) * math.sqrt(inputs)
    return SHARE_OF_A_SIGNAL * signal * math.sqrt(tensor.numel())


def _typical(model: Update) -> float:
    """Return the size of an entry in the smallest tensor that is not 0 everywhere."""
    sizes = torch.tensor([norm([tensor]) / math.sqrt(tensor.numel()) for tensor in model.values()])
    return float(sizes[sizes > 0].min()) if (sizes > 0).any() else 0.0
