"""Common support: public random positions of each layer, the same for all clients of a round.

Positions that do not depend on data say nothing about it, cost no bytes, and let masked updates be summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_app.seeding import SERVER, seed_for
from fl_app.sketches import Drawn
from fl_app.sketches.selection import floor_count
from fl_app.transforms.settings import check_share
from fl_app.types import Update

Support = Callable[[Update, int], Drawn]
"""From an update (its shapes alone count) and a round to its positions."""


@dataclass(frozen=True)
class Shares:
    """Shares of the entries that travel, by the kind of tensor."""

    first: float
    """Of the first weight of two or more dimensions."""
    hidden: float
    output: float
    """Of the last one; of a model with a single one, too."""
    biases: float
    """Of tensors of fewer dimensions: biases, and the scales of normalisation."""

    def check(self, who: str) -> None:
        """Refuse shares outside of [0, 1], and those that send nothing."""
        for name, share in vars(self).items():
            check_share(who, name, share)
        if not any(vars(self).values()):
            raise ValueError(f"{who}: at least one share must be above 0, got {self}")

    def of(self, update: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the share of every tensor."""
        matrices = [name for name, tensor in update.items() if tensor.ndim >= 2]
        kinds = dict.fromkeys(matrices, self.hidden)
        kinds |= dict.fromkeys(matrices[:1], self.first) | dict.fromkeys(matrices[-1:], self.output)
        return {name: kinds.get(name, self.biases) for name in update}


def common_support(shares: Shares, seed: int) -> Support:
    """Return the support that everybody draws who knows ``seed``: it is public."""

    def draw(update: Update, round: int) -> Drawn:
        counts = {
            name: min(update[name].numel(), max(1, floor_count(share, update[name].numel())))
            if share > 0
            else 0
            for name, share in shares.of(update).items()
        }
        return Drawn(seed_for(seed, round, SERVER, "support"), counts)

    return draw


def positions_in(drawn: Drawn, name: str, tensor: Tensor) -> Tensor:
    """Return the drawn positions of a flat tensor, all of them if all are drawn."""
    n, count = tensor.numel(), drawn.counts[name]
    if count == n:
        return torch.arange(n, device=tensor.device)
    if count == 0:
        return torch.zeros(0, dtype=torch.int64, device=tensor.device)
    return torch.tensor(drawn.positions(name, n), device=tensor.device)
