"""Client-level differential privacy as one setting of a run: sampling, clipping, noise and accounting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fl_app.privacy.accounting import calibrate
from fl_app.privacy.client_account import ClientAccount, covers_left_out
from fl_app.privacy.client_noise import ClientNoise
from fl_app.privacy.cohorts import (
    ADJACENCY,
    SAMPLINGS,
    chance_below,
    draw_fixed,
    draw_poisson,
    fixed_count,
    mean_divisor,
)
from fl_app.privacy.noise_shares import NoiseShares


def no_noise() -> None:
    """Return None: no differential privacy."""


@dataclass(frozen=True)
class ClientLevel(ClientNoise):
    """The client-level Gaussian mechanism on random cohorts, whose clients share the noise."""

    sampling: str = "poisson"
    accountant: str = "rdp"
    honest: float = 1.0
    """Assumed share of each cohort that keeps its noise from the server, under secure aggregation."""

    def __post_init__(self) -> None:
        """Refuse settings that protect no client, or that contradict each other."""
        super().__post_init__()
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"ClientLevel: sampling must be one of {SAMPLINGS}, got {self.sampling!r}")
        if not 0 < self.honest <= 1:
            raise ValueError(f"ClientLevel: honest must be in (0, 1], got {self.honest}")
        if self.canaries and self.sampling != "poisson":
            raise ValueError(
                "ClientLevel: canaries are drawn by coins: take sampling=poisson, "
                f"got canaries={self.canaries}"
            )
        self.account()  # refuses a budget that no round can keep
        if self.epsilon is not None and not covers_left_out(self.epsilon, self.left_out, self.delta):
            raise ValueError(
                f"ClientLevel: with {self.clients} clients at rate {self.rate:g}, fewer than "
                f"min_clients={self.min_clients} are drawn in some of {self.rounds} rounds with a chance of "
                f"{self.left_out:.2g}; the model then stands still, which tells of single clients, and "
                f"delta={self.delta:g} does not cover it: draw more clients, or lower min_clients"
            )

    @cached_property
    def sigma(self) -> float:
        """The noise multiplier of a round's whole noise."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        books = self.account()
        return calibrate(
            self.epsilon,
            books.accounted_delta,
            self.accounted_rate,
            self.rounds,
            self.accountant,
            self.sampling,
            self.thresholds,
        )

    @property
    def left_out(self) -> float:
        """Probability that any round is skipped because too few clients were drawn for secure aggregation."""
        if not self.thresholds or self.sampling != "poisson":
            return 0.0
        return min(1.0, self.rounds * chance_below(self.clients, self.rate, self.min_clients))

    @property
    def assumed_honest(self) -> float | None:
        """Share of each cohort that must keep its noise from the server; None: no epsilon depends on it."""
        return self.honest if self.thresholds else None

    @property
    def accounted_rate(self) -> float:
        """Probability that a client is in a round: of a draw of fixed size, by the whole number drawn."""
        if self.sampling == "fixed":
            return fixed_count(self.clients, self.rate) / self.clients
        return self.rate

    @property
    def accounted_by(self) -> str:
        """The accountant of the epsilons."""
        return self.accountant

    @property
    def adjacency(self) -> str:
        """Neighbouring federations that the epsilon of the models compares."""
        return ADJACENCY[self.sampling]

    @property
    def mechanism(self) -> str:
        """The name of the noise's distribution."""
        return "distributed discrete Gaussian" if self.thresholds else "Gaussian"

    def account(self) -> ClientAccount:
        """Open the privacy account."""
        return ClientAccount(
            self.delta, self.epsilon, self.accountant, self.sampling, self.thresholds, self.left_out
        )

    def shares(self, cohort: int, threshold: int | None) -> NoiseShares:
        """Return a cohort's shares of the noise, given the threshold of secure aggregation or None."""
        return NoiseShares(self.sigma, cohort, threshold, self.honest)

    def draw(self, clients: Sequence[int], generator: torch.Generator, server_round: int) -> list[int]:
        """Return the clients in a random draw by ``sampling``."""
        source = generator if self.replayable else None
        if self.sampling == "fixed":
            return draw_fixed(clients, everybody=self.clients, rate=self.rate, generator=source)
        return draw_poisson(clients, self.rate, source)

    @property
    def divisor(self) -> float:
        """The divisor that turns a sum into a step of the model."""
        return mean_divisor(self.sampling, rate=self.rate, clients=self.clients)
