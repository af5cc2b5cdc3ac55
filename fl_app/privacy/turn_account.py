"""Privacy account of clients that take turns under correlated noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fl_app.privacy.correlated_noise import squared_sensitivity
from fl_app.privacy.gaussian_privacy import gaussian_epsilon


@dataclass
class TurnAccount:
    """The cost of rounds to the clients of the first turn, who lose most.

    The order of turns is public, so nothing is amplified. Its fields are plain data.
    """

    delta: float
    separation: int
    """Rounds from one turn of a client to its next."""
    multiplier: float
    """Of the fresh noise: its standard deviation over the clipping bound."""
    limit: float | None = None
    """The epsilon that must not be passed; None: any."""
    rounds: int = 0
    lost: int = 0
    """Rounds that were cut short. A row of the factor may have been released once more, and no coefficient
    is above 1."""
    server: dict[int, float] = field(default_factory=dict)
    """By client, the signal that the server got: infinite, since it adds the noise itself."""

    def allows(self) -> bool:
        """Say whether one more round stays within the limit; ask before anything is sent."""
        return self.limit is None or self.after() <= self.limit

    def after(self) -> float:
        """Return the epsilon that there would be after one more round."""
        return self._epsilon(self.rounds + 1)

    def charge(self, clients: Iterable[int]) -> None:
        """Charge a round in which ``clients`` were asked."""
        self.rounds += 1
        self._tell_server(clients)

    def charge_lost(self, clients: Iterable[int]) -> None:
        """Charge a round that was cut short; it will be begun again."""
        self.lost += 1
        self._tell_server(clients)

    @property
    def signal(self) -> float:
        """The squared distance of the worlds with and without a client, in deviations of the noise."""
        return self._signal(self.rounds)

    @property
    def epsilon(self) -> float | None:
        """The exact cost against an observer of the models; None before the first round."""
        return None if self.rounds + self.lost == 0 else self._epsilon(self.rounds)

    @property
    def epsilon_server(self) -> float | None:
        """The cost against the server: infinite as soon as it got a vector."""
        return math.inf if self.server else self.epsilon

    def _signal(self, rounds: int) -> float:
        return (squared_sensitivity(self.separation, rounds) + self.lost) / self.multiplier**2

    def _epsilon(self, rounds: int) -> float:
        return gaussian_epsilon(math.sqrt(self._signal(rounds)), self.delta)

    def _tell_server(self, clients: Iterable[int]) -> None:
        self.server |= dict.fromkeys(clients, math.inf)
