"""Record-level noise of clients whose vectors also carry client-level noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fl_app.privacy.accounting import ACCOUNTANTS, calibrate
from fl_app.privacy.events import Release


@dataclass(frozen=True)
class RecordLevel:
    """DP-SGD in the local steps of every client, by numbers that all know.

    Each record enters a step with the same public probability at every client. The cost of a round then
    follows from the settings alone: a client need not tell its number of records, which client-level
    privacy hides.
    """

    rounds: int
    steps: int
    """Local steps of a round."""
    epsilon: float = 4.0
    """Budget of a record whose client takes part in all rounds."""
    delta: float = 1e-5
    clip: float = 1.0
    """Bound of the L2 norm of a record's gradient."""
    rate: float = 0.1
    """Probability that a record is in a step."""
    noise_multiplier: float | None = None
    """Noise multiplier of a step; None: calibrated to the budget."""
    accountant: str = "rdp"

    adjacency = "add or remove one record of a client"
    """Neighbouring federations that epsilon compares. Clients divide by a number of records that stays."""

    def __post_init__(self) -> None:
        """Refuse settings that protect no record."""
        who = type(self).__name__
        for name in ("rounds", "steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{who}: {name} must be a whole number of at least 1, got {value!r}")
        for name in ("epsilon", "clip"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"{who}: {name} must be finite and above 0, got {value}")
        if not 0 < self.delta < 1:
            raise ValueError(f"{who}: delta must be in (0, 1), got {self.delta}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"{who}: rate must be in (0, 1], got {self.rate}")
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < float("inf"):
            raise ValueError(
                f"{who}: noise_multiplier must be finite and above 0, got {self.noise_multiplier}"
            )
        if self.accountant not in ACCOUNTANTS:
            raise ValueError(
                f"{who}: accountant must be one of {', '.join(ACCOUNTANTS)}, got {self.accountant!r}"
            )
        _ = self.sigma  # an unreachable budget fails now

    @cached_property
    def sigma(self) -> float:
        """The noise multiplier of a step."""
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        return calibrate(self.epsilon, self.delta, self.rate, self.rounds * self.steps, self.accountant)

    @property
    def release(self) -> Release:
        """The cost of one round to each record of a client that takes part."""
        return Release(self.rate, self.sigma, self.steps, self.delta)
