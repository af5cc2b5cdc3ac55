"""Observed gradients of several problems, stacked: the fixed side of every distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.optimisation.objectives import Distance, Matching
from attacks.optimisation.problem import Problem
from attacks.optimisation.withheld import Withheld, with_withheld


class Evidence(NamedTuple):
    """Stack of observed gradients, one row per guess."""

    target: Tensor
    sent: Tensor
    low: Tensor
    high: Tensor
    """Bounds on the withheld entries."""
    before: Tensor
    """Sum of the entries that the client sent in earlier rounds."""

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Evidence:
        """Stack the observations of all problems; without a rule or earlier rounds the bounds are empty."""
        rows = []
        for problem in problems:
            unknown = torch.full_like(problem.target, torch.inf)
            low, high = problem.withheld or (unknown, unknown)
            before = torch.zeros_like(problem.target) if problem.rounds is None else problem.rounds.before
            rows.append((problem.target, problem.sent, low, high, before))
        return cls(*(torch.stack(part) for part in zip(*rows, strict=True)))

    def rows(self, which: Tensor | slice) -> Evidence:
        """Return some of the guesses."""
        return Evidence(*(part[which] for part in self))

    def distance(self, matching: Matching, *, masked: bool, withheld: float) -> Distance:
        """Return the distance of guessed gradients: over all entries, or ``masked`` to those that were sent.

        If masked, the withheld entries must obey the pruning rule, with the given weight.
        """
        distance = matching(self.target, self.sent if masked else None)
        if masked and withheld > 0 and self.low.isfinite().any():
            distance = with_withheld(
                distance, self.target, self.sent, Withheld(self.low, self.high), withheld
            )
        if not self.before.any():
            return distance
        return lambda gradient: distance(gradient - self.before)
