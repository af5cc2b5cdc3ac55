"""Interface and settings shared by all mechanisms of client-level differential privacy."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fl_app.privacy.client_level import clip_and_share, clip_vector
from fl_app.privacy.discrete_gaussian import Bits, Whole, seeded_bits, system_bits
from fl_app.privacy.noise_grid import NoiseGrid
from fl_app.privacy.noise_shares import NoiseShares
from fl_app.privacy.normal_noise import Noise, replayable_noise, secure_noise
from fl_app.privacy.record_level import RecordLevel


@dataclass(frozen=True)
class ClientNoise(ABC):
    """A client-level mechanism with a budget.

    Server and clients each build it from the same settings, so a client need not trust the
    server for the amount of noise.
    """

    rounds: int
    rate: float
    """Probability that a client is in a round, or the share of rounds that it is in."""
    clients: int
    epsilon: float | None = 1.0
    """Budget at which training stops; None: no budget."""
    delta: float = 1e-5
    noise_multiplier: float | None = None
    """Noise multiplier; None: calibrated so that the budget lasts for all rounds."""
    clip: float | None = None
    """Clipping bound; None: learnt from public samples."""
    secure: bool | str = "auto"
    """True if noise and draws come from the operating system. Only simulations may set false."""
    canaries: int = 0
    """Number of random updates that a simulation adds to measure epsilon."""
    thresholds: bool = False
    """True if secure aggregation hides sums of few clients; the noise is then in whole numbers."""
    min_clients: int = 2
    """With secure aggregation, rounds with fewer clients are skipped."""
    records: RecordLevel | None = None
    """Noise of single records in the clients' local steps; None: none."""

    def __post_init__(self) -> None:
        """Refuse settings that protect no client."""
        who = type(self).__name__
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(f"{who}: give epsilon or noise_multiplier, got neither")
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                f"{who}: noise_multiplier must be finite and above 0, got {self.noise_multiplier}"
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"{who}: clip must be finite and above 0, got {self.clip}")
        if self.secure not in (choices := (True, False, "auto")):
            raise ValueError(f"{who}: secure must be one of {choices}, got {self.secure!r}")
        if self.min_clients < 2:
            raise ValueError(f"{who}: min_clients must be at least 2, got {self.min_clients}")
        if self.canaries < 0 or self.canaries == 1:
            raise ValueError(f"{who}: canaries must be 0 or at least 2, got {self.canaries}")
        for refused, why in (
            (self.secure is not False, "are for simulations (secure=false)"),
            (self.thresholds, "cannot take part in secure aggregation: switch one of them off"),
        ):
            if self.canaries and refused:
                raise ValueError(f"{who}: canaries {why}, got canaries={self.canaries}")

    @property
    def digest(self) -> str:
        """Hash of the settings that the server charges; both sides must have the same."""
        values = [getattr(self, field.name) for field in fields(self) if field.name != "secure"]
        equal = [float(value) if isinstance(value, int) else value for value in values]
        return hashlib.sha256(f"{type(self).__name__} {equal}".encode()).hexdigest()[:16]

    @property
    @abstractmethod
    def sigma(self) -> float:
        """The multiplier of a round's noise: its standard deviation over the clipping bound."""

    @property
    @abstractmethod
    def adjacency(self) -> str:
        """Neighbouring federations that the epsilon of the models compares."""

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """The name of the noise's distribution."""

    @property
    @abstractmethod
    def accounted_by(self) -> str:
        """The accountant of the epsilons."""

    @property
    def separation(self) -> int | None:
        """Rounds from one turn of a client to the next; None: clients are drawn at random.

        Clients that take turns add no noise: the server adds noise that is correlated over rounds.
        """
        return None

    @property
    def assumed_honest(self) -> float | None:
        """Share of each cohort that must keep its noise from the server; None: no epsilon depends on it."""
        return None

    @abstractmethod
    def shares(self, cohort: int, threshold: int | None) -> NoiseShares:
        """Return a cohort's shares of the noise, given the threshold of secure aggregation or None."""

    @abstractmethod
    def draw(self, clients: Sequence[int], generator: torch.Generator, server_round: int) -> list[int]:
        """Return those of ``clients`` that take part; there may be any number."""

    @property
    @abstractmethod
    def divisor(self) -> float:
        """The divisor that turns a sum into a step of the model: the same, whoever is in the sum."""

    @property
    def largest_cohort(self) -> int:
        """Most clients that can share the noise of a round."""
        return self.clients + self.canaries

    @property
    def replayable(self) -> bool:
        """True if the noise can be replayed from the run's seed."""
        return self.secure is False

    def protect(
        self, values: Tensor, *, clip: float, shares: NoiseShares, generator: torch.Generator
    ) -> Tensor:
        """Return a client's values, clipped and with its share of the noise, in double precision."""
        return clip_and_share(values, clip=clip, multiplier=shares.local, noise=self._noise(generator))

    def protect_whole(self, values: Tensor, grid: NoiseGrid, generator: torch.Generator) -> Whole:
        """Return a client's values in whole steps, clipped and with its share of discrete noise."""
        return grid.protect(clip_vector(values, grid.clip), self._bits(generator))

    def missing(self, count: int, *, deviation: float, generator: torch.Generator) -> Tensor:
        """Return noise in place of clients whose vector is not in a sum, in double precision."""
        return deviation * self._noise(generator)(count)

    def missing_whole(self, count: int, grid: NoiseGrid, generator: torch.Generator) -> Whole:
        """Return the noise of ``count`` shares in whole steps."""
        return grid.shares(count, self._bits(generator))

    def _noise(self, generator: torch.Generator) -> Noise:
        return replayable_noise(generator) if self.replayable else secure_noise()

    def _bits(self, generator: torch.Generator) -> Bits:
        return seeded_bits(generator) if self.replayable else system_bits
