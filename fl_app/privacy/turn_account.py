"""Privacy account of clients that take turns under correlated noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fl_app.privacy.correlated_noise import squared_sensitivity
from fl_app.privacy.gaussian_privacy import gaussian_epsilon


@dataclass
class TurnAccount:
    """Cost of rounds to the clients of the first turn, whose cost is the largest.

    The order of turns is public, so there is no amplification. The fields are plain data.
    """

    delta: float
    separation: int
    """Rounds from one turn of a client to the next."""
    multiplier: float
    """Standard deviation of the fresh noise over the clipping bound."""
    limit: float | None = None
    """Largest epsilon allowed; None: no limit."""
    rounds: int = 0
    lost: int = 0
    """Interrupted rounds. Each may have released a row of the factor once more, and no coefficient
    is above 1."""
    server: dict[int, float] = field(default_factory=dict)
    """Signal that the server got, by client: infinite, since the server adds the noise itself."""

    def allows(self) -> bool:
        """Return whether one more round stays within the limit; call it before sending anything."""
        return self.limit is None or self.after() <= self.limit

    def after(self) -> float:
        """Return the epsilon after one more round."""
        return self._epsilon(self.rounds + 1)

    def charge(self, clients: Iterable[int]) -> None:
        """Charge a round with the invited ``clients``."""
        self.rounds += 1
        self._tell_server(clients)

    def charge_lost(self, clients: Iterable[int]) -> None:
        """Charge an interrupted round, which will start again."""
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
