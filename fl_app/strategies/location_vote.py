"""Vote of several clients on locations, without Flower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median_high

import torch
from torch import Tensor

from fl_app.sketches.selection import largest
from fl_app.types import Update

Masks = Mapping[str, Tensor]


def vote(ballots: Sequence[Masks], generator: torch.Generator) -> Update:
    """Return, for every tensor, as many positions as each ballot has: those with the most votes.

    Ties are broken by a draw: any fixed order would favour the same positions in every round.
    """
    elected: Update = {}
    for name, first in ballots[0].items():
        votes = torch.stack([ballot[name] for ballot in ballots]).sum(0)
        # less than one vote, so it only breaks ties; in doubles, so that it is never rounded away
        draw = torch.rand(first.shape, generator=generator, dtype=torch.float64, device="cpu")
        elected[name] = largest(votes + draw.to(votes.device), int(first.sum()))
    return elected


def agreement(ballots: Mapping[int, Masks]) -> dict[int, float]:
    """Return for every voter the share of its positions that another voter names too.

    It is the upper median over the others: as long as half of them are honest, an honest
    voter gets at least its smallest overlap with an honest one.
    """
    total = sum(int(mask.sum()) for mask in next(iter(ballots.values())).values())

    def common(one: Masks, other: Masks) -> float:
        return sum(int((mask & other[name]).sum()) for name, mask in one.items()) / total

    shared = {pair: common(ballots[pair[0]], ballots[pair[1]]) for pair in combinations(ballots, 2)}
    return {voter: median_high(share for pair, share in shared.items() if voter in pair) for voter in ballots}
