"""Group consistency (Yin et al. 2021): pull restarts of one problem towards the image they agree on.

Each restart gets different details wrong; their registered mean has fewer errors. The paper
registers by a learned flow; we undo translations of a few pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.metrics import match
from attacks.optimisation.image_space import to_pixels
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.registration import registered_mean

WARM_UP = 0.25
"""Share of the steps before the restarts are compared."""
EVERY = 0.02
"""Share of the steps between registrations."""
REACH = 4
"""Largest translation in pixels, in each direction."""


class GroupConsistency:
    """Penalises the mean squared distance of guesses to the registered mean of their problem.

    ``owners`` gives each guess's problem, ``labels`` its labels (P, B).
    """

    def __init__(self, weight: float, owners: Sequence[int], labels: Tensor):
        self.weight = weight
        self.labels = labels
        self.groups = [[i for i, o in enumerate(owners) if o == owner] for owner in dict.fromkeys(owners)]
        self.period = -1
        self.agreed: Tensor | None = None

    def __call__(self, variables: Variables, progress: float) -> Tensor:
        """Return the penalties (P,)."""
        images = variables["images"]
        if progress < WARM_UP:
            return images.new_zeros(len(images))
        period = int((progress - WARM_UP) / EVERY)
        if self.agreed is None or period != self.period:
            self.period, self.agreed = period, self.agree(images.detach())
        return self.weight * (images - self.agreed).square().flatten(1).mean(dim=1)

    def agree(self, images: Tensor) -> Tensor:
        """Return, for each guess, the images (B, C, H, W) that its group agrees on, in its own order."""
        agreed = torch.empty_like(images)
        for members in self.groups:
            group, labels = images[members], self.labels[members[0]]
            orders = torch.stack([_order_like(group[0], one, labels) for one in group])
            arranged = torch.stack([one[order] for one, order in zip(group, orders, strict=True)])
            mean = registered_mean(arranged, REACH)
            for member, order in zip(members, orders, strict=True):
                agreed[member, order] = mean
        return agreed


def _order_like(first: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return the order of ``images`` nearest to ``first``: samples of one label may have changed places."""
    order = torch.arange(len(labels), device=images.device)
    for label in labels.unique().tolist():
        own = (labels == label).nonzero().flatten()
        if len(own) > 1:
            order[own] = own[match(to_pixels(images[own]), to_pixels(first[own]))]
    return order
