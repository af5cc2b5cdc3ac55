"""Held-out samples: a share of every class, drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fl_app.data.dataset import Dataset, Samples
from fl_app.seeding import SERVER, generator_for


def mark_share(labels: Tensor, share: float, generator_of: Callable[[int], torch.Generator]) -> Tensor:
    """Mark ``share`` of each class, at least one, and leave at least one."""
    marked = torch.zeros_like(labels, dtype=torch.bool)
    for label in labels.unique().tolist():
        (members,) = torch.nonzero(labels == label, as_tuple=True)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        order = torch.randperm(len(members), generator=generator_of(label), device="cpu")
        marked[members[order[:count]]] = True
    return marked


def split_validation(dataset: Dataset, share: float) -> tuple[Dataset, Samples | None]:
    """Return the data set without ``share`` of its test samples, and those: of each group, in their order.

    The same data and share always give the same samples, whatever the run's seed:
    runs are compared on the same ones.
    """
    if share == 0:
        return dataset, None
    labels = dataset.test.groups
    chosen = mark_share(labels, share, lambda label: generator_for(0, 0, SERVER, f"validation/{label}"))
    if not chosen.any():
        raise ValueError(
            f"split_validation: {dataset.name} must have two test samples of some class, has one of each"
        )
    return replace(dataset, test=dataset.test.take(~chosen)), dataset.test.take(chosen)
