"""Rényi divergence of the Gaussian mechanism on a fixed number of clients, drawn without replacement.

The bound is by Wang, Balle and Kasiviswanathan (AISTATS 2019, Theorem 9), for whole orders. Neighbouring
federations differ in the data of one client (replace one): both have the same number of clients, and
a sum may change by twice the clipping bound.
"""

from __future__ import annotations

import math
from functools import cache


@cache
def divergence_without_replacement(sigma: float, rate: float, order: float) -> float:
    """Return the divergence of one step; ``sigma`` is the noise's deviation over the clipping bound."""
    if order < 2 or order != int(order):
        raise ValueError(
            f"divergence_without_replacement: order must be a whole number from 2 on, got {order}"
        )
    order = int(order)
    if sigma == 0:
        return math.inf

    def plain(j: float) -> float:
        """The divergence without sampling; the sum changes by two clipping bounds."""
        return j * 4 / (2 * sigma**2)

    if rate == 1:
        return plain(order)
    # logarithms of the terms of the binomial sum; the first is 1
    terms = [0.0]
    second = min(math.log(4) + _log_expm1(plain(2)), math.log(2) + plain(2))
    terms.append(2 * math.log(rate) + _log_choose(order, 2) + second)
    terms += [
        j * math.log(rate) + _log_choose(order, j) + (j - 1) * plain(j) + math.log(2)
        for j in range(3, order + 1)
    ]
    largest = max(terms)
    total = largest + math.log(math.fsum(math.exp(term - largest) for term in terms))
    # sampling never costs more than full participation
    return min(total / (order - 1), plain(order))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_expm1(x: float) -> float:
    return x + math.log1p(-math.exp(-x)) if x > 30 else math.log(math.expm1(x))
