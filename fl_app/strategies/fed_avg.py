"""FedAvg on Flower: clients send the change of local training."""

from __future__ import annotations

from torch import nn

from fl_app.strategies.aggregate import undo
from fl_app.strategies.arguments import ConfiguredRun, check_numbers
from fl_app.strategies.fed_sgd import FedSGD
from fl_app.strategies.optimisers import ServerOptimiser, sgd
from fl_app.strategies.robust import Rule
from fl_app.training.schedules import Schedule
from fl_app.types import Update


class FedAvg(FedSGD):
    """Local SGD per client per round; ``x <- x + server_lr * mean(delta)``, by sample count.

    With ``momentum`` the mean change is accumulated as in FedAvgM. The schedule's
    rate is that of the clients, who get it with the order.
    """

    sends_changes = True

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        server_lr: float = 1.0,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimiser: ServerOptimiser | None = None,
        downlink: str = "auto",
        exchange_buffers: bool = True,
        timeout: float | None = None,
        wait: float = 60.0,
        seed: int = 0,
        aggregate: Rule | None = None,
        run: ConfiguredRun | None = None,
    ) -> None:
        who = type(self).__name__
        check_numbers(who, server_lr=server_lr)
        if server_lr <= 0:
            raise ValueError(f"{who}: server_lr must be positive, got {server_lr}")
        if optimiser is not None and server_lr != 1:
            raise ValueError(f"{who}: an optimiser has its own rate: server_lr must be 1, got {server_lr}")
        self.server_lr = server_lr
        super().__init__(
            model,
            lr,
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )
        if self.weight_decay:
            raise ValueError(f"{who}: weight_decay belongs to the clients' training, not to the strategy")

    def default_optimiser(self) -> ServerOptimiser:
        """Return SGD at the server's rate."""
        return sgd(lr=self.server_lr, momentum=self.momentum)

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the mean change."""
        change = self.accelerate(mean)
        return self._move({name: -delta for name, delta in change.items()}, server_round)

    def undo_step(self, before: Update, after: Update, server_round: int) -> tuple[Update, Update]:
        """Return the mean change between two models, and its rounding error."""
        return undo(before, after, -self.server_lr)
