"""Client-level differential privacy as one setting of a run: sampling, clipping, noise and accounting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fl_app.privacy.accounting import calibrate
from fl_app.privacy.client_account import ClientAccount
from fl_app.privacy.client_level import clip_and_share, clip_vector
from fl_app.privacy.cohorts import ADJACENCY, SAMPLINGS, chance_below, draw_poisson, mean_divisor
from fl_app.privacy.discrete_gaussian import Bits, Whole, seeded_bits, system_bits
from fl_app.privacy.noise_grid import NoiseGrid
from fl_app.privacy.noise_shares import NoiseShares
from fl_app.privacy.normal_noise import Noise, replayable_noise, secure_noise


def no_noise() -> None:
    """Return nothing: no differential privacy."""


@dataclass(frozen=True)
class ClientLevel:
    """The client-level Gaussian mechanism with a budget.

    Server and clients each make it from the same settings: a client does not have to
    be told by the server how much noise there is to be shared.
    """

    rounds: int
    rate: float
    """The chance of a client to be in a round."""
    clients: int
    epsilon: float | None = 1.0
    """The budget, at which training stops; None: there is none."""
    delta: float = 1e-5
    noise_multiplier: float | None = None
    """None: the multiplier that makes the budget last for all rounds."""
    clip: float | None = None
    """None: learnt from public samples."""
    sampling: str = "poisson"
    accountant: str = "rdp"
    secure: bool | str = "auto"
    """True if noise and draws come from the operating system. Only simulations may set false."""
    thresholds: bool = False
    """Whether secure aggregation hides sums of few clients; noise is then in whole numbers."""
    min_clients: int = 2
    """With secure aggregation a round with fewer clients is left out."""
    canaries: int = 0
    """Random updates in a simulation beside those of clients, by which epsilon is measured."""

    def __post_init__(self) -> None:
        """Refuse settings that protect no client, or that contradict each other."""
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("ClientLevel: give epsilon or noise_multiplier, got neither")
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                f"ClientLevel: noise_multiplier must be finite and above 0, got {self.noise_multiplier}"
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"ClientLevel: clip must be finite and above 0, got {self.clip}")
        for what, value, choices in (
            ("sampling", self.sampling, SAMPLINGS),
            ("secure", self.secure, (True, False, "auto")),
        ):
            if value not in choices:
                raise ValueError(f"ClientLevel: {what} must be one of {choices}, got {value!r}")
        if self.min_clients < 2:
            raise ValueError(f"ClientLevel: min_clients must be at least 2, got {self.min_clients}")
        self._check_canaries()
        self.account()  # refuses a budget that nothing could keep
        if self.epsilon is not None and (1 + math.exp(self.epsilon)) * self.left_out > self.delta / 2:
            raise ValueError(
                f"ClientLevel: with {self.clients} clients at rate {self.rate:g}, fewer than "
                f"min_clients={self.min_clients} are drawn in some of {self.rounds} rounds with a chance of "
                f"{self.left_out:.2g}; the model then stands still, which tells of single clients, and "
                f"delta={self.delta:g} does not cover it: draw more clients, or lower min_clients"
            )

    def _check_canaries(self) -> None:
        if self.canaries < 0 or self.canaries == 1:
            raise ValueError(f"ClientLevel: canaries must be 0 or at least 2, got {self.canaries}")
        if not self.canaries:
            return
        for refused, why in (
            (self.secure is not False, "are for simulations (secure=false)"),
            (self.thresholds, "cannot take part in secure aggregation: switch one of them off"),
            (self.sampling != "poisson", "are drawn by coins: take sampling=poisson"),
        ):
            if refused:
                raise ValueError(f"ClientLevel: canaries {why}, got canaries={self.canaries}")

    @property
    def largest_cohort(self) -> int:
        """The most that can share the noise of a round."""
        return self.clients + self.canaries

    @property
    def replayable(self) -> bool:
        """True if the noise can be replayed from the run's seed."""
        return self.secure is False

    @cached_property
    def sigma(self) -> float:
        """The noise multiplier of a round's whole noise."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        books = self.account()
        return calibrate(
            self.epsilon,
            books.accounted_delta,
            self.rate,
            self.rounds,
            self.accountant,
            self.sampling,
            self.thresholds,
        )

    @property
    def left_out(self) -> float:
        """The chance that any round is left out since coins drew too few clients for secure aggregation."""
        if not self.thresholds or self.sampling != "poisson":
            return 0.0
        return min(1.0, self.rounds * chance_below(self.clients, self.rate, self.min_clients))

    @property
    def adjacency(self) -> str:
        """What the epsilon of the models compares."""
        return ADJACENCY[self.sampling]

    @property
    def mechanism(self) -> str:
        """The name of the noise's distribution."""
        return "distributed discrete Gaussian" if self.thresholds else "Gaussian"

    def account(self) -> ClientAccount:
        """Open the books."""
        return ClientAccount(
            self.delta, self.epsilon, self.accountant, self.sampling, self.thresholds, self.left_out
        )

    def shares(self, cohort: int, threshold: int | None) -> NoiseShares:
        """Return how a cohort shares the noise, with the threshold of secure aggregation or without any."""
        return NoiseShares(self.sigma, cohort, threshold)

    def protect(
        self, values: Tensor, *, clip: float, shares: NoiseShares, generator: torch.Generator
    ) -> Tensor:
        """Return a client's values, clipped and with its share of the noise, in double precision."""
        return clip_and_share(values, clip=clip, multiplier=shares.local, noise=self._noise(generator))

    def protect_whole(self, values: Tensor, grid: NoiseGrid, generator: torch.Generator) -> Whole:
        """Return a client's values in whole steps, clipped and with its share of discrete noise."""
        return grid.protect(clip_vector(values, grid.clip), self._bits(generator))

    def missing(self, count: int, *, deviation: float, generator: torch.Generator) -> Tensor:
        """Return noise for those whose vector is not in a sum, in double precision."""
        return deviation * self._noise(generator)(count)

    def missing_whole(self, count: int, grid: NoiseGrid, generator: torch.Generator) -> Whole:
        """Return the noise of ``count`` shares in whole steps."""
        return grid.shares(count, self._bits(generator))

    def _noise(self, generator: torch.Generator) -> Noise:
        return replayable_noise(generator) if self.replayable else secure_noise()

    def _bits(self, generator: torch.Generator) -> Bits:
        return seeded_bits(generator) if self.replayable else system_bits

    def draw(self, clients: Sequence[int], generator: torch.Generator) -> list[int]:
        """Return those of ``clients`` whose coin fell: Poisson sampling."""
        return draw_poisson(clients, self.rate, generator if self.replayable else None)

    def divisor(self, counted: int) -> float:
        """Return what turns a sum over ``counted`` clients into a step of the model."""
        return mean_divisor(self.sampling, rate=self.rate, clients=self.clients, counted=counted)
