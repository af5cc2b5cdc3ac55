"""Estimated number of samples of each recovered class."""

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


def count_samples(labels: Tensor, evidence: Tensor, batch_size: int | None) -> Tensor | None:
    """Return the number of samples of each of ``labels``, or None if the evidence is unclear.

    ``evidence`` is the gradient of the output layer's bias, or the sums of its rows: each sample
    lowers that of its class by about the same below the mean of absent classes. The numbers count only
    if each is rounded by less than a quarter and together they make ``batch_size``; as many labels
    as samples are no proof of one each, for a label may be none.
    """
    if batch_size is None or len(labels) > batch_size:
        return None
    absent = torch.ones_like(evidence, dtype=torch.bool).index_fill(0, labels, False)
    pull = (evidence[absent].mean() if absent.any() else 0.0) - evidence[labels]
    counts = batch_size * pull / pull.sum()
    rounded = counts.round()
    clear = bool(((counts - rounded).abs() < 0.25).all()) and bool((rounded >= 1).all())
    return rounded.long() if clear and int(rounded.sum()) == batch_size else None
