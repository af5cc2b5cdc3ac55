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
from fl_app.privacy.client_level import clip_and_share
from fl_app.privacy.cohorts import SAMPLINGS, draw_poisson, mean_divisor
from fl_app.privacy.noise_shares import SHARES, NoiseShares, whole_noise
from fl_app.privacy.normal_noise import replayable_noise, secure_noise


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
    share: str = "threshold"
    sampling: str = "poisson"
    accountant: str = "rdp"
    secure: bool | str = "auto"
    """True if noise and draws come from the operating system. Only simulations may set false."""
    thresholds: bool = False
    """True if secure aggregation hides sums of few clients."""
    min_clients: int = 2
    """A round with fewer clients is left out."""

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
            ("share", self.share, SHARES),
            ("sampling", self.sampling, SAMPLINGS),
            ("secure", self.secure, (True, False, "auto")),
        ):
            if value not in choices:
                raise ValueError(f"ClientLevel: {what} must be one of {choices}, got {value!r}")
        if self.min_clients < 2:
            raise ValueError(f"ClientLevel: min_clients must be at least 2, got {self.min_clients}")
        self.account()  # refuses a budget that nothing could keep

    @property
    def replayable(self) -> bool:
        """True if the noise can be replayed from the run's seed."""
        return self.secure is False

    @cached_property
    def sigma(self) -> float:
        """The noise multiplier of a round's whole noise."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        counted = calibrate(self.epsilon, self.delta, self.rate, self.rounds)
        if not self.thresholds or self.share != "threshold":
            return counted
        return whole_noise(counted, self._fewest)

    @property
    def _fewest(self) -> int:
        """A number of clients that a draw hardly ever falls below."""
        expected = self.rate * self.clients
        spread = 4 * math.sqrt(expected * (1 - self.rate)) if self.sampling == "poisson" else 0.0
        return max(self.min_clients, math.floor(expected - spread))

    def account(self) -> ClientAccount:
        """Open the books."""
        return ClientAccount(self.delta, self.epsilon, self.accountant)

    def shares(self, cohort: int, threshold: int | None) -> NoiseShares:
        """Return how a cohort shares the noise, with the threshold of secure aggregation or without any."""
        return NoiseShares(self.sigma, cohort, threshold, self.share)

    def protect(
        self, values: Tensor, *, clip: float, shares: NoiseShares, generator: torch.Generator
    ) -> Tensor:
        """Return a client's values, clipped and with its share of the noise, in double precision."""
        noise = replayable_noise(generator) if self.replayable else secure_noise()
        return clip_and_share(values, clip=clip, multiplier=shares.local, noise=noise)

    def draw(self, clients: Sequence[int], generator: torch.Generator) -> list[int]:
        """Return those of ``clients`` whose coin fell: Poisson sampling."""
        return draw_poisson(clients, self.rate, generator if self.replayable else None)

    def divisor(self, counted: int) -> float:
        """Return what turns a sum over ``counted`` clients into a step of the model."""
        return mean_divisor(self.sampling, rate=self.rate, clients=self.clients, counted=counted)
