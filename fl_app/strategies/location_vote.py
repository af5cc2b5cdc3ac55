"""What several clients' locations come to, without Flower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fl_app.selection import largest
from fl_app.types import Update

Masks = Mapping[str, Tensor]


def vote(ballots: Sequence[Masks], generator: torch.Generator) -> Update:
    """Return, for every tensor, as many positions as each ballot has: those with the most votes.

    Ties are broken by a draw: any fixed order would favour the same positions in every round.
    """
    elected: Update = {}
    for name, first in ballots[0].items():
        votes = torch.stack([ballot[name] for ballot in ballots]).sum(0)
        # less than one vote, so it decides among equals only; doubles, so that it always counts
        draw = torch.rand(first.shape, generator=generator, dtype=torch.float64, device="cpu")
        elected[name] = largest(votes + draw.to(votes.device), int(first.sum()))
    return elected


def agreement(ballots: Mapping[int, Masks]) -> dict[int, float]:
    """Return for every voter the share of its positions that another voter names too, in the mean."""
    total = sum(int(mask.sum()) for mask in next(iter(ballots.values())).values())
    common = {
        voter: {
            other: sum(int((mask & ballots[other][name]).sum()) for name, mask in ballot.items())
            for other in ballots
            if other != voter
        }
        for voter, ballot in ballots.items()
    }
    return {voter: sum(shared.values()) / len(shared) / total for voter, shared in common.items()}
