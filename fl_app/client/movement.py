"""Movement of a model between two orders, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fl_app.seeding import unpredictable_state
from fl_app.types import Update

SHARE_OF_A_SIGNAL = 0.25
"""Move of a bias that counts as 1, relative to the signals that it is added to."""
QUARTILES = 4.0
"""Largest size of an entry that counts, in lower quartiles: the root mean square of normal numbers is 3.1."""
_LOOKED_AT = 512


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
    generator = torch.Generator()
    generator.set_state(unpredictable_state())  # a server that knew the entries could make them huge
    shares = torch.rand(_LOOKED_AT, generator=generator)
    spread = torch.linspace(0, 1, _LOOKED_AT + 1)[:-1]
    looked_at = []
    for tensor in model.values():
        where = (shares if tensor.numel() > _LOOKED_AT else spread) * tensor.numel()
        looked_at.append(tensor.detach().flatten()[where.long()])
    quartiles = torch.stack(looked_at).abs().kthvalue(_LOOKED_AT // 4, dim=1).values.tolist()
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
