"""Rows of a pruned gradient: find the rows of one sample and merge their surviving entries.

Two rows that one sample activates are multiples of it. Where both survive they agree up to
a factor, and where only one does, it tells what the other lacks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.active.level_votes import FEWEST
from attacks.knowledge import travelled
from fl_app.types import Observation

HOLES = 0.02
"""A smaller share of zeros is chance: a small step may round to nothing."""
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
    """Return whether some of the first ``features`` entries, or biases, are missing in rows that were sent.

    A row of zeros is one without samples. A bias that did not change is not missing in a delta:
    it is large, and a small step is lost in its rounding.
    """
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    live = obs.update[weight][:, :features].any(dim=1)
    parts = [travelled(obs, weight)[live, :features]]
    if obs.local_steps is None:
        parts.append(travelled(obs, bias)[live])
    return any(float((~sent).double().mean()) > HOLES for sent in parts if sent.numel())


def merge_rows(weight: Tensor, sent: Tensor) -> list[Merged]:
    """Return the rows (M, features) of which anything survives, in groups of multiples.

    Rows of different samples may agree where both are white, so they must agree on `FEWEST`
    different values.
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
        for row, factor in zip(rows, factors, strict=True):  # both grow: what joins brings others
            for other in (multiples[row] & ~taken).nonzero().flatten().tolist():
                common = sent[row] & sent[other]
                here, there = weight[row, common], weight[other, common]
                if _distinct(here) < FEWEST:
                    continue
                taken[other] = True
                rows.append(other)
                factors.append(factor * float((there @ here) / (here @ here)))
        groups.append(_merge(weight, sent, torch.tensor(rows), weight.new_tensor(factors)))
    return groups


def _multiples(weight: Tensor, sent: Tensor) -> Tensor:
    """Return which pairs of rows (M, M) agree up to a factor on enough common survivors."""
    mask = sent.to(weight)
    products, lengths = weight @ weight.t(), weight.square() @ mask.t()
    both = lengths * lengths.t()
    return (mask @ mask.t() >= FEWEST) & (both > 0) & (both - products.square() < AGREE * both)


def _distinct(values: Tensor) -> int:
    """Return how many values differ by more than rounding does."""
    steps = values.sort().values.diff()
    return 1 + int((steps > 1e-5 * values.abs().max()).sum())


def _merge(weight: Tensor, sent: Tensor, rows: Tensor, factors: Tensor) -> Merged:
    chosen = sent[rows]
    sums, squares = factors @ weight[rows], factors.square() @ chosen.to(weight)
    return Merged(rows, factors, sums / torch.where(squares > 0, squares, 1), chosen.any(dim=0))
