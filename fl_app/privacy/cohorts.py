"""Cohorts: the clients drawn in a round, and the divisor of their sum.

A sum is divided by a number that depends on settings alone: by the expected number of coins, or by that of
a fixed draw. The number of vectors in the sum depends on single clients, and thousands of noisy coordinates
would show by what they were divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import SystemRandom

import torch
from scipy.stats import binom

from fl_app.privacy.normal_noise import secure_uniform

SAMPLINGS = ("poisson", "fixed")
"""poisson: a coin flip for each client; fixed: a fixed number of clients, as in the paper."""
ADJACENCY = {
    "poisson": "add or remove one client",
    "fixed": "replace one client",
    "turns": "add or remove one client",
}
"""Federations that an epsilon compares: with and without a client, or with a client replaced."""


def chance_below(clients: int, rate: float, least: int) -> float:
    """Return the probability that coins draw fewer than ``least`` clients when any one client is absent."""
    return float(binom.cdf(least - 1, clients - 1, rate))


def draw_poisson(clients: Sequence[int], rate: float, generator: torch.Generator | None) -> list[int]:
    """Return ``clients``, each kept with probability ``rate``, in their order.

    Without a generator the coins come from the operating system and cannot be replayed.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"draw_poisson: rate must be in (0, 1], got {rate}")
    count = len(clients)
    if generator is None:
        coins = secure_uniform(count)
    else:
        coins = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
    return [client for client, coin in zip(clients, coins.tolist(), strict=True) if coin < rate]


def fixed_count(clients: int, rate: float) -> int:
    """Return the number of clients in a draw of fixed size: at least one."""
    return min(clients, max(1, int(rate * clients + 0.5)))


def draw_fixed(
    clients: Sequence[int], *, everybody: int, rate: float, generator: torch.Generator | None
) -> list[int]:
    """Return those of ``clients`` that are in a draw of fixed size from clients 0 to ``everybody`` - 1.

    A draw among those who are there would take each of them more often, the fewer there are. Without a
    generator the draw comes from the operating system and cannot be replayed.
    """
    count = fixed_count(everybody, rate)
    if count == everybody:
        return list(clients)
    if generator is None:
        drawn = set(SystemRandom().sample(range(everybody), count))
    else:
        drawn = set(torch.randperm(everybody, generator=generator, device="cpu")[:count].tolist())
    return [client for client in clients if client in drawn]


def mean_divisor(sampling: str, *, rate: float, clients: int) -> float:
    """Return the divisor that turns a sum of updates into the step of the model, whoever is in it."""
    if sampling not in SAMPLINGS:
        raise ValueError(f"mean_divisor: sampling must be one of {', '.join(SAMPLINGS)}; got {sampling!r}")
    return rate * clients if sampling == "poisson" else float(fixed_count(clients, rate))
