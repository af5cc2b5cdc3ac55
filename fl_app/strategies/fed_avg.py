"""FedAvg on Flower: clients send what local training changed."""

from __future__ import annotations

from typing import Any

from fl_app.strategies.aggregate import undo
from fl_app.strategies.fed_sgd import FedSGD
from fl_app.strategies.optimisers import ServerOptimiser, sgd
from fl_app.types import Update


class FedAvg(FedSGD):
    """Local SGD per client per round; ``x <- x + server_lr * mean(delta)``, by sample count.

    With ``momentum`` the mean change is accumulated as in FedAvgM. The schedule's
    rate is the clients' own; it travels in the order.
    """

    sends_changes = True

    def __init__(
        self,
        *args: Any,
        server_lr: float = 1.0,
        optimiser: ServerOptimiser | None = None,
        **kwargs: Any,
    ) -> None:
        who = type(self).__name__
        if server_lr <= 0:
            raise ValueError(f"{who}: server_lr must be positive, got {server_lr}")
        if optimiser is not None and server_lr != 1:
            raise ValueError(f"{who}: an optimiser has its own rate: server_lr must be 1, got {server_lr}")
        self.server_lr = server_lr
        super().__init__(*args, optimiser=optimiser, **kwargs)
        if self.weight_decay:
            raise ValueError(f"{who}: weight_decay belongs to the clients' training, not to the strategy")

    def default_optimiser(self) -> ServerOptimiser:
        """Return SGD at the server's own rate."""
        return sgd(lr=self.server_lr, momentum=self.momentum)

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the mean change."""
        change = self.accelerate(mean)
        return self._move({name: -delta for name, delta in change.items()}, server_round)

    def undo_step(self, before: Update, after: Update, server_round: int) -> tuple[Update, Update]:
        """Return the mean change between two models, and how far rounding may be off."""
        return undo(before, after, -self.server_lr)
