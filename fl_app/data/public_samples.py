"""A few samples that a server may use openly, drawn by a seed."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.seeding import SERVER, generator_for


def draw_public(labels: Tensor, count: int, seed: int, *, balanced: bool = False) -> Tensor:
    """Return the indices of ``count`` samples; ``balanced``: the same number of every class that occurs.

    For Fashion-MNIST, the paper on FL-TOP takes 10 MNIST digits; for patients, 12 of each class.
    """
    classes = labels.unique()
    if not 1 <= count <= len(labels):
        raise ValueError(f"draw_public: count must be in 1..{len(labels)}, got {count}")
    generator = generator_for(seed, 0, SERVER, "public")
    order = torch.randperm(len(labels), generator=generator, device="cpu")
    if not balanced:
        return order[:count]
    each, left = divmod(count, len(classes))
    fewest = int(torch.bincount(labels)[classes].min())
    if left or each > fewest:
        raise ValueError(
            f"draw_public: a balanced count must be a multiple of {len(classes)} classes, "
            f"and at most {fewest} a class; got {count}"
        )
    return torch.cat([order[labels[order] == label][:each] for label in classes])
