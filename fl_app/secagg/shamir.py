"""Shamir sharing of 32-byte secrets: any ``threshold`` shares give the secret, fewer give nothing.

A secret is the value at zero of a random polynomial modulo a prime; holder x gets the value at x. The points
are small, so Python's own whole numbers are fast enough, and the weights of Lagrange's formula are
computed once for all secrets that the same holders return.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Sequence

PRIME = 2**256 + 297
"""The smallest prime that is larger than every 32-byte number."""
SECRET_BYTES = 32
SHARE_BYTES = 33


def split_secret(secret: int, *, threshold: int, points: Sequence[int], prime: int = PRIME) -> list[int]:
    """Return the share of every point; the polynomial comes from the operating system's generator."""
    if not 1 <= threshold <= len(points):
        raise ValueError(f"split_secret: threshold must be in [1, {len(points)}], got {threshold}")
    if not 0 <= secret < prime:
        raise ValueError("split_secret: the secret is not a number below the prime")
    _check_points("split_secret", points, prime)
    coefficients = [secrets.randbelow(prime) for _ in range(threshold - 1)]
    return [_value_at(point, secret, coefficients, prime) for point in points]


def weigh_points(points: Sequence[int], *, prime: int = PRIME) -> list[int]:
    """Return the Lagrange coefficient of each point's share in the sum that is the secret.

    Lagrange at zero: the weight of x_i is the product of x_j / (x_j - x_i) over the other points.
    """
    _check_points("weigh_points", points, prime)
    # all products of the x_j / x_i: one number over x_i
    below = [point * math.prod(other - point for other in points if other != point) for point in points]
    above = math.prod(points)
    return [above * inverse % prime for inverse in _invert(below, prime)]


def join_shares(shares: Sequence[int], weights: Sequence[int], prime: int = PRIME) -> int:
    """Return the secret from shares in the order of the weights' points."""
    return sum(share * weight for share, weight in zip(shares, weights, strict=True)) % prime


def _check_points(who: str, points: Sequence[int], prime: int) -> None:
    if len(set(points)) != len(points) or not all(0 < point < prime for point in points):
        raise ValueError(f"{who}: points must be different and in [1, {prime}), got {list(points)}")


def _invert(numbers: Sequence[int], prime: int) -> list[int]:
    """Return the inverses of all numbers with a single inversion, that of their product."""
    products = list(itertools.accumulate(numbers, lambda product, number: product * number % prime))
    inverse = pow(products[-1], -1, prime) if products else 1
    inverses = []
    for number, before in zip(reversed(numbers), [*reversed(products[:-1]), 1], strict=False):
        inverses.append(inverse * before % prime)
        inverse = inverse * number % prime
    return inverses[::-1]


def _value_at(point: int, secret: int, coefficients: Sequence[int], prime: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value + coefficient) * point % prime
    return (value + secret) % prime
