"""Down-sampling: as many samples of every class as the rarest one has."""

from __future__ import annotations

import torch
from torch import Tensor


def balance(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the indices of an equal number of samples of each class that occurs, in random order.

    All of the rarest class are there; of the others a draw. If one class alone occurs, all stay.
    """
    classes = labels.unique()
    order = torch.randperm(len(labels), generator=generator, device="cpu")
    fewest = int(torch.bincount(labels)[classes].min()) if len(labels) else 0
    kept = torch.zeros(len(labels), dtype=torch.bool, device="cpu")
    for label in classes:
        kept[order[labels[order] == label][:fewest]] = True
    return order[kept[order]]
