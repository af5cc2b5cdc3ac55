"""Holm's correction: how likely a finding is by chance if many were looked for."""

from __future__ import annotations

from collections.abc import Sequence


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return the adjusted probabilities, in the given order."""
    order = sorted(range(len(probabilities)), key=lambda i: probabilities[i])
    adjusted = [0.0] * len(order)
    largest = 0.0
    for rank, i in enumerate(order):
        # a finding cannot be surer than one with a smaller probability
        largest = max(largest, min(1.0, (len(order) - rank) * probabilities[i]))
        adjusted[i] = largest
    return adjusted
