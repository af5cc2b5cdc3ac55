"""Cohorts: the clients drawn in a round, and the divisor of their sum.

Privacy accounting assumes that each client is drawn by a coin of its own. The sum
is then divided by the number of clients that is expected: the drawn one depends
on whether a client is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.stats import binom

from fl_app.privacy.normal_noise import secure_uniform

SAMPLINGS = ("poisson", "fixed")
"""poisson: a coin for each client; fixed: a set number of clients, as in the paper."""
ADJACENCY = {
    "poisson": "add or remove one client",
    "fixed": "replace one client",
    "turns": "add or remove one client",
}
"""Federations that an epsilon compares: with and without a client, or with another one in its place."""


def chance_below(clients: int, rate: float, least: int) -> float:
    """Return the chance that coins draw fewer than ``least`` clients, if any one client is not there."""
    return float(binom.cdf(least - 1, clients - 1, rate))


def draw_poisson(clients: Sequence[int], rate: float, generator: torch.Generator | None) -> list[int]:
    """Return those of ``clients`` whose coin of chance ``rate`` fell, in their order.

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
    """Return what turns the sum of ``counted`` updates into the step of the model."""
    if sampling not in SAMPLINGS:
        raise ValueError(f"mean_divisor: sampling must be one of {', '.join(SAMPLINGS)}; got {sampling!r}")
    return rate * clients if sampling == "poisson" else float(counted)
