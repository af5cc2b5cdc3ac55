"""Upper bound on the residual of error feedback (Xue et al., AAAI 2024, Lemma 1)."""

from __future__ import annotations


def residual_bound(gamma: float, g: float) -> float:
    """Return the bound of E‖e‖², where e is the mean of the clients' residuals.

    ``gamma``: the largest share of ‖P‖² that a transform withholds from its input P (Assumption 1);
    ``g``: the largest norm of a gradient (Assumption 3).
    """
    if not 0 <= gamma < 1:
        raise ValueError(f"residual_bound: gamma must be in [0, 1), got {gamma}")
    if not g >= 0:
        raise ValueError(f"residual_bound: g must not be negative, got {g}")
    return 3 * gamma * (2 + gamma) / (2 * (1 - gamma) ** 2) * g**2
