"""Down-sampling of every class to the size of the rarest."""

from __future__ import annotations

import torch
from torch import Tensor


def balance(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the indices of an equal number of samples of each class that occurs, in random order.

    All of the rarest class are there; of the others a draw. If one class alone occurs, all stay.
    """
    if len(labels) == 0:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    order = torch.randperm(len(labels), generator=generator, device="cpu")
    members = [order[labels[order] == label] for label in labels.unique()]
    fewest = min(map(len, members))
    kept = torch.cat([indices[:fewest] for indices in members])
    return kept[torch.randperm(len(kept), generator=generator, device="cpu")]
