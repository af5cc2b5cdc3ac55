"""Movement of a model between two orders, tensor by tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fl_app.types import Update

SHARE_OF_A_SIGNAL = 0.25
"""Move of a bias that counts as 1, relative to the signals that it is added to."""
QUARTILES = 4.0
"""Largest size of an entry that counts, in lower quartiles: the root mean square of normal numbers is 3.1."""
_LOOKED_AT = 512
_SPREAD = np.arange(_LOOKED_AT) / _LOOKED_AT


@dataclass
class LastMove:
    """Cache of the last move: the clients of one process hold the same model and get the same next one."""

    before: Update = field(default_factory=dict)
    after: Update = field(default_factory=dict)
    moved: float = 0.0

    def of(self, before: Update, after: Update) -> float:
        """Return the `movement`; models are known by their very tensors, which nobody changes in place."""
        if not (_is(before, self.before) and _is(after, self.after)):
            self.moved = movement(before, after)
            self.before, self.after = before, after
        return self.moved


def _is(model: Update, other: Update) -> bool:
    return model.keys() == other.keys() and all(tensor is other[name] for name, tensor in model.items())


def movement(before: Update, after: Update) -> float:
    """Return the largest move of any tensor, relative to its size before.

    A weight's size is its norm, or what its lower quartile says if that is far less: a server that wants to
    move the weights of some inputs far could otherwise give huge ones to inputs that never change. A
    bias is compared with the signals that it is added to: the output of its layer's weights for inputs
    of size 1. A server that extracts samples moves the biases of a layer together across those signals,
    and its first model may have biases of any size.
    """
    old = list(before.values())
    moves = _norms([*torch._foreach_sub([after[name] for name in before], old), *old])
    if not all(map(math.isfinite, moves)):
        return math.inf  # nothing is known of moves beside a number whose square is too large
    if not any(moves[: len(old)]):
        return 0.0
    sizes = _sizes(before, moves[len(old) :])
    largest = 0.0
    for name, moved in zip(before, moves, strict=False):
        if moved:
            size = _size(name, before, sizes)
            largest = max(largest, moved / size if size else math.inf)
    return largest


def _norms(tensors: Sequence[Tensor]) -> list[float]:
    """Return the norm of each tensor, in one pass over all."""
    return [] if not tensors else torch.stack(torch._foreach_norm(list(tensors))).tolist()


def _sizes(model: Update, norms: Sequence[float]) -> dict[str, float]:
    """Return the size of a typical entry of each tensor: its root mean square, bounded by its quartile."""
    # a server that knew the entries could make them huge
    shares = np.frombuffer(os.urandom(4 * _LOOKED_AT), "<u4") / 2.0**32
    counts = [tensor.numel() for tensor in model.values()]
    places = [(shares if count > _LOOKED_AT else _SPREAD) * count for count in counts]
    where = torch.from_numpy(np.array(places).astype(np.int64))
    looked_at = [
        torch.take(tensor.detach(), at.to(tensor.device))
        for tensor, at in zip(model.values(), where, strict=True)
    ]
    magnitudes = torch.stack(looked_at).abs().cpu().double().numpy()
    magnitudes.partition(_LOOKED_AT // 4 - 1, axis=1)
    quartiles = magnitudes[:, _LOOKED_AT // 4 - 1].tolist()
    return {
        name: min(norm / math.sqrt(tensor.numel()), QUARTILES * quartile)
        for (name, tensor), norm, quartile in zip(model.items(), norms, quartiles, strict=True)
    }


def _size(name: str, model: Update, sizes: Mapping[str, float]) -> float:
    path, _, last = name.rpartition(".")
    layer = f"{path}.{last.replace('bias', 'weight')}".lstrip(".")
    size = sizes[name] or _typical(sizes)
    if last.startswith("bias") and layer in model:
        weights = model[layer]
        inputs = weights[0].numel() if weights.ndim > 1 else 1
        size = SHARE_OF_A_SIGNAL * sizes[layer] * math.sqrt(inputs)
    return size * math.sqrt(model[name].numel())


def _typical(sizes: Mapping[str, float]) -> float:
    """Return the size of an entry in the smallest nonzero tensor."""
    return min((size for size in sizes.values() if size > 0), default=0.0)
