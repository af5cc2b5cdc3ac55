"""Cohorts: the clients drawn in a round, and the divisor of their sum.

Privacy accounting assumes an independent coin flip for each client. The sum is then
divided by the expected number of clients: the actual number depends on whether a
client is present.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def mean_divisor(sampling: str, *, rate: float, clients: int, counted: int) -> float:
    """Return the divisor that turns the sum of ``counted`` updates into the step of the model."""
    if sampling not in SAMPLINGS:
        raise ValueError(f"mean_divisor: sampling must be one of {', '.join(SAMPLINGS)}; got {sampling!r}")
    return rate * clients if sampling == "poisson" else float(counted)
