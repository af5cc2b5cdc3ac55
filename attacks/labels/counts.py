"""How many samples each recovered class has: an estimate where signs only tell which classes occur."""

from __future__ import annotations

import torch
from torch import Tensor


def fill_batch(labels: Tensor, rows: Tensor, batch_size: int) -> Tensor:
    """Return ``batch_size`` labels: each of ``labels`` once, then repeats by the weight of its row.

    ``rows`` is the output layer's gradient. A class with ``n`` samples pulls its row
    down by about ``n`` mean features, so each repeat goes to the class whose row sum
    is the most negative for the repeats that it already has.
    """
    if len(labels) >= batch_size:
        return labels[:batch_size]
    pull = -rows.sum(dim=1)[labels].double()
    counts = torch.ones_like(pull)
    for _ in range(batch_size - len(labels)):
        counts[(pull / counts).argmax()] += 1
    return labels.repeat_interleave(counts.long())
