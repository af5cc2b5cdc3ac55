"""FedAvg on Flower: clients send what local training changed."""

from __future__ import annotations

from typing import Any

from fl_app.strategies.aggregate import undo
from fl_app.strategies.fed_sgd import FedSGD
from fl_app.types import Update


class FedAvg(FedSGD):
    """Local SGD per client per round; ``x <- x + server_lr * mean(delta)``, by sample count.

    With ``momentum`` the mean change is accumulated as in FedAvgM. The schedule's
    rate is the clients' own; it travels in the order.
    """

    def __init__(self, *args: Any, server_lr: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if server_lr <= 0:
            raise ValueError(f"FedAvg: server_lr must be positive, got {server_lr}")
        if self.weight_decay:
            raise ValueError("FedAvg: weight_decay belongs to the clients' training, not to the strategy")
        self.server_lr = server_lr

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the mean change."""
        delta = self.accelerate(mean)
        return {name: weight + self.server_lr * delta[name] for name, weight in self.weights.items()}

    def undo_step(self, before: Update, after: Update, server_round: int) -> tuple[Update, Update]:
        """Return the mean change between two models, and how far rounding may be off."""
        return undo(before, after, -self.server_lr)
