"""Rows of a pruned gradient: find the rows of one sample and merge their surviving entries.

Two rows activated by one sample are multiples of it. Where both survive, they agree up to
a factor; where only one does, it supplies the entry that the other lacks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.active.level_votes import FEWEST
from attacks.knowledge import travelled
from fl_app.types import Observation

HOLES = 0.02
"""Smallest share of zeros that indicates pruning: a small step may also round to zero."""
AGREE = 1e-9
"""One minus the squared cosine of two rows, where both survive, below which they are multiples."""


class Merged(NamedTuple):
    """Rows that are multiples of one vector."""

    rows: Tensor
    """Their indices (R,)."""
    factors: Tensor
    """Each row is its factor (R,) times ``values``; the first one's is 1."""
    values: Tensor
    """The vector (features,), 0 where no row survives."""
    known: Tensor


def is_pruned(obs: Observation, layer: str, features: int) -> bool:
    """Return whether sent rows lack some of their first ``features`` entries, or their biases.

    A row of zeros has no samples. In a delta, an unchanged bias does not count as missing:
    biases are large, and a small step is lost in their rounding.
    """
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    live = obs.update[weight][:, :features].any(dim=1)
    parts = [travelled(obs, weight)[live, :features]]
    if obs.local_steps is None:
        parts.append(travelled(obs, bias)[live])
    return any(float((~sent).double().mean()) > HOLES for sent in parts if sent.numel())


def merge_rows(weight: Tensor, sent: Tensor) -> list[Merged]:
    """Group the surviving rows (M, features) into multiples of one another.

    Rows of different samples may agree where both are white, so rows of a group must agree on
    `FEWEST` different values.
    """
    weight = torch.where(sent, weight, 0)
    multiples = _multiples(weight, sent)
    taken = ~weight.any(dim=1)
    groups = []
    for first in sent.sum(dim=1).argsort(descending=True).tolist():
        if taken[first]:
            continue
        taken[first] = True
        rows, factors = [first], [1.0]
        for row, factor in zip(rows, factors, strict=True):  # both lists grow: a new member may bring others
            for other in (multiples[row] & ~taken).nonzero().flatten().tolist():
                common = sent[row] & sent[other]
                here, there = weight[row, common], weight[other, common]
                if _distinct(here) < FEWEST:
                    continue
                taken[other] = True
                rows.append(other)
                factors.append(factor * float((there @ here) / (here @ here)))
        chosen = torch.tensor(rows, device=weight.device)
        groups.append(_merge(weight, sent, chosen, weight.new_tensor(factors)))
    return groups


def _multiples(weight: Tensor, sent: Tensor) -> Tensor:
    """Return the mask (M, M) of row pairs that agree up to a factor on enough common survivors."""
    mask = sent.to(weight)
    products, lengths = weight @ weight.t(), weight.square() @ mask.t()
    both = lengths * lengths.t()
    return (mask @ mask.t() >= FEWEST) & (both > 0) & (both - products.square() < AGREE * both)


def _distinct(values: Tensor) -> int:
    """Return the number of values that differ by more than rounding."""
    steps = values.sort().values.diff()
    return 1 + int((steps > 1e-5 * values.abs().max()).sum())


def _merge(weight: Tensor, sent: Tensor, rows: Tensor, factors: Tensor) -> Merged:
    chosen = sent[rows]
    sums, squares = factors @ weight[rows], factors.square() @ chosen.to(weight)
    return Merged(rows, factors, sums / torch.where(squares > 0, squares, 1), chosen.any(dim=0))
