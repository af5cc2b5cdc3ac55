"""Privacy account of a client: cost of all rounds so far, and whether another fits the budget.

There are two observers. An observer of the models only does not know which clients took part; that
secret makes each round cheaper (`epsilon`). The server knows, and each round in which a client took
part costs in full (`epsilon_server`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fl_app.privacy.accounting import Ledger
from fl_app.privacy.events import Release

_ANYBODY = -1
"""Account of an observer of the models only, to whom all clients look alike."""


@dataclass
class ClientAccount:
    """Cost of rounds of the client-level mechanism. Plain data: the fields are its whole state."""

    delta: float
    limit: float | None = None
    """Largest epsilon allowed; None: no limit."""
    accountant: str = "rdp"
    sampling: str = "poisson"
    discrete: bool = False
    left_out: float = 0.0
    """Probability that any round is skipped because too few clients were drawn.

    One client may decide whether a round is skipped. Outside of that event the account covers all rounds,
    so the event adds at most ``(1 + exp(epsilon)) left_out`` to delta: half of delta is reserved for it.
    """
    models: Ledger = field(init=False)
    server: dict[int, float] = field(default_factory=dict)
    """By client, the sum of ``1 / multiplier^2`` over its rounds."""

    def __post_init__(self) -> None:
        """Refuse a budget that no round can keep, and open the ledger."""
        if not 0 < self.delta < 1:
            raise ValueError(f"ClientAccount: delta must be in (0, 1), got {self.delta}")
        if self.limit is not None and not self.limit > 0:
            raise ValueError(f"ClientAccount: limit must be above 0, got {self.limit}")
        self.models = self._ledger()

    def allows(self, *, rate: float, multiplier: float) -> bool:
        """Return whether one more round stays within the limit; call it before sending anything."""
        return self.limit is None or self.after(rate=rate, multiplier=multiplier) <= self.limit

    def after(self, *, rate: float, multiplier: float) -> float:
        """Return the epsilon after one more round."""
        ahead = self._ledger()
        ahead.delta, ahead.spent = (
            self.models.delta,
            {who: dict(spent) for who, spent in self.models.spent.items()},
        )
        ahead.charge(_ANYBODY, Release(rate, multiplier, 1, self.accounted_delta))
        return self._with_left_out(ahead.epsilon() or 0.0)

    def charge(
        self, *, rate: float, multiplier: float, cohort: Iterable[int] = (), server_multiplier: float = 0.0
    ) -> None:
        """Charge a round.

        ``cohort`` holds all invited clients, including those that did not answer: the
        answer may have been lost on the way. A round that was skipped because too few were
        drawn has no cohort and is still charged: the unchanged model can be observed.
        A round that was restarted after unmasking had begun is charged twice.
        """
        self.models.charge(_ANYBODY, Release(rate, multiplier, 1, self.accounted_delta))
        cost = math.inf if server_multiplier == 0 else server_multiplier**-2
        for client in cohort:
            self.server[client] = self.server.get(client, 0.0) + cost

    @property
    def epsilon(self) -> float | None:
        """Return the cost against an observer of the models only; None before the first round."""
        spent = self.models.epsilon()
        return None if spent is None else self._with_left_out(spent)

    @property
    def accounted_delta(self) -> float:
        """Return the delta of the accounting: half of the whole delta if rounds may be skipped."""
        return self.delta / 2 if self.left_out else self.delta

    def _with_left_out(self, epsilon: float) -> float:
        return epsilon if covers_left_out(epsilon, self.left_out, self.delta) else math.inf

    def _ledger(self) -> Ledger:
        return Ledger(self.accountant, sampling=self.sampling, discrete=self.discrete)

    @property
    def epsilon_server(self) -> float | None:
        """Return the cost against the server, for the client with the largest cost.

        Gaussian releases without sampling compose to one whose squared signal-to-noise ratio
        is the sum of theirs, so one number per client suffices. The server sees the models too,
        so it never knows less than an observer of the models only.
        """
        if self.epsilon is None or not self.server:
            return self.epsilon
        return max(self.epsilon, self._server_epsilon(max(self.server.values())))

    def _server_epsilon(self, cost: float) -> float:
        # the server knows who takes part: no sampling, and a client is compared with its absence
        ledger = Ledger(self.accountant, discrete=self.discrete)
        ledger.charge(_ANYBODY, Release(1.0, 1 / math.sqrt(cost), 1, self.delta))
        return ledger.epsilon() or 0.0


def covers_left_out(epsilon: float, left_out: float, delta: float) -> bool:
    """Return whether half of ``delta`` covers the chance ``left_out`` that a round is skipped."""
    return (1 + math.exp(min(epsilon, 700.0))) * left_out <= delta / 2
