"""Movement of a model between two orders, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fl_app.types import Update

SHARE_OF_A_SIGNAL = 0.25
"""Move of a bias that counts as 1, relative to the signals that it is added to."""


def movement(before: Update, after: Update) -> float:
    """Return the largest move of any tensor, relative to its size before.

    A weight's size is its norm. A bias is compared with the signals that it is added to: the output of
    its layer's weights for inputs of size 1. A server that extracts samples moves the biases of a layer
    together across those signals, and its first model may have biases of any size.
    """
    old = list(before.values())
    moves = _norms([*torch._foreach_sub([after[name] for name in before], old), *old])
    norms = dict(zip(before, moves[len(old) :], strict=True))
    if not all(map(math.isfinite, moves)):
        return math.inf  # nothing is known of moves beside a number whose square is too large
    largest = 0.0
    for name, moved in zip(before, moves, strict=False):
        if moved:
            size = _size(name, before, norms)
            largest = max(largest, moved / size if size else math.inf)
    return largest


def _norms(tensors: Sequence[Tensor]) -> list[float]:
    """Return the norm of each tensor, in one pass over all."""
    return [] if not tensors else torch.stack(torch._foreach_norm(list(tensors))).tolist()


def _size(name: str, model: Update, norms: Mapping[str, float]) -> float:
    path, _, last = name.rpartition(".")
    layer = f"{path}.{last.replace('bias', 'weight')}".lstrip(".")
    entries = model[name].numel()
    if not last.startswith("bias") or layer not in model:
        return norms[name] or _typical(model, norms) * math.sqrt(entries)
    weights = model[layer]
    inputs = weights[0].numel() if weights.ndim > 1 else 1
    signal = norms[layer] / math.sqrt(weights.numel()) * math.sqrt(inputs)
    return SHARE_OF_A_SIGNAL * signal * math.sqrt(entries)


def _typical(model: Update, norms: Mapping[str, float]) -> float:
    """Return the size of an entry in the smallest nonzero tensor."""
    sizes = [norms[name] / math.sqrt(tensor.numel()) for name, tensor in model.items()]
    return min((size for size in sizes if size > 0), default=0.0)
