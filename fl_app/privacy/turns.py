"""Client-level differential privacy without random draws: clients take turns, and noise is correlated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fl_app.privacy.client_noise import ClientNoise
from fl_app.privacy.cohorts import ADJACENCY
from fl_app.privacy.correlated_noise import NoiseStream, squared_sensitivity
from fl_app.privacy.gaussian_privacy import gaussian_distance
from fl_app.privacy.noise_shares import NoiseShares
from fl_app.privacy.turn_account import TurnAccount

_DIGITS = 10_000
"""Calibrated noise multipliers are multiples of one over this, as in other mechanisms."""
_INEXACT = 1e-3
"""Relative error of a rate that is meant to be one over a whole number, such as 0.333."""


@dataclass(frozen=True)
class TakeTurns(ClientNoise):
    """DP-FTRL for clients that cannot be drawn at random, with a budget.

    Clients with the same remainder by ``separation = 1 / rate`` take part together, in every
    ``separation``-th round. They clip their vectors; the server adds all the noise, which protects against
    observers of the models, but not against the server.
    """

    def __post_init__(self) -> None:
        """Refuse settings that protect no client, or that contradict each other."""
        if self.thresholds:
            raise ValueError(
                "TakeTurns: under secure aggregation no client can take back noise of another one's round, "
                "and noise of the server's does not protect from it; take dp=client, or secagg=off"
            )
        if not 0 < self.rate <= 1 or abs(self.separation * self.rate - 1) > _INEXACT:
            raise ValueError(f"TakeTurns: rate must be one over a whole number, got {self.rate}")
        if self.clients < self.separation:
            raise ValueError(
                f"TakeTurns: {self.separation} turns need as many clients, got {self.clients}; raise the rate"
            )
        super().__post_init__()
        self.account()  # refuses a budget that no round can keep

    @property
    def separation(self) -> int:
        """Rounds from one turn of a client to the next."""
        return round(1 / self.rate)

    @cached_property
    def sigma(self) -> float:
        """The multiplier of the fresh noise of a round."""
        if self.noise_multiplier is not None or self.epsilon is None:
            return self.noise_multiplier or 0.0
        sensitivity = math.sqrt(squared_sensitivity(self.separation, self.rounds))
        return math.ceil(sensitivity / gaussian_distance(self.epsilon, self.delta) * _DIGITS) / _DIGITS

    @property
    def adjacency(self) -> str:
        """Neighbouring federations of the epsilon: turns and divisor stay the same without a client."""
        return ADJACENCY["turns"]

    @property
    def accounted_by(self) -> str:
        """The accountant of the epsilons."""
        return "exact"

    @property
    def mechanism(self) -> str:
        """The name of the noise's distribution."""
        return "Gaussian, correlated over rounds"

    def account(self) -> TurnAccount:
        """Open the privacy account."""
        return TurnAccount(self.delta, self.separation, self.sigma, self.epsilon)

    def stream(self) -> NoiseStream:
        """Return a new noise stream for a run, in clipping bounds."""
        return NoiseStream(self.separation)

    def shares(self, cohort: int, threshold: int | None) -> NoiseShares:
        """Return a cohort's shares of the noise: clients add none."""
        return NoiseShares(0.0, cohort, threshold)

    def draw(self, clients: Sequence[int], generator: torch.Generator, server_round: int) -> list[int]:
        """Return those of ``clients`` whose turn it is."""
        turn = (server_round - 1) % self.separation
        return [client for client in clients if client % self.separation == turn]

    @property
    def divisor(self) -> float:
        """The average number of clients of a turn, whichever clients are present."""
        return self.clients / self.separation
