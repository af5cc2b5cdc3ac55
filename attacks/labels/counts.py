"""How many samples each recovered class has: an estimate where signs only tell which classes occur."""

from __future__ import annotations

import torch
from torch import Tensor


def fill_batch(labels: Tensor, rows: Tensor, batch_size: int) -> Tensor:
    """Return ``batch_size`` labels: each of ``labels`` once, then repeats by the weight of its row.

    ``rows`` is the output layer's gradient. On an untrained model, ``n`` samples of a
    class pull its row's sum about ``n`` mean features below the rows of absent classes;
    each repeat goes to the class with the strongest pull for the samples it already has.
    """
    if len(labels) >= batch_size:
        return labels[:batch_size]
    sums = rows.sum(dim=1).double()
    absent = torch.ones_like(sums, dtype=torch.bool).index_fill(0, labels, False)
    level = sums[absent].mean() if absent.any() else sums.new_zeros(())
    pull = level - sums[labels]
    counts = torch.ones_like(pull)
    for _ in range(batch_size - len(labels)):
        counts[(pull / counts).argmax()] += 1
    return labels.repeat_interleave(counts.long())
