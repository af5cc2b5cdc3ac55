"""FedProx on Flower: FedAvg with a penalty for distance from the received model."""

from __future__ import annotations

import logging

from torch import nn

from fl_app.strategies.arguments import ConfiguredRun, check_numbers
from fl_app.strategies.fed_avg import FedAvg
from fl_app.strategies.optimisers import ServerOptimiser
from fl_app.strategies.robust import Rule
from fl_app.training.schedules import Schedule

logger = logging.getLogger(__name__)


class FedProx(FedAvg):
    """FedAvg with ``proximal_mu / 2 * ||w - w_t||^2`` in the clients' loss (Li et al., 2020).

    The server averages as FedAvg does. Clients read the setting from the config they share with the
    server (``training.proximal_mu``), like their epochs and batches.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        server_lr: float = 1.0,
        proximal_mu: float = 0.0,
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
        super().__init__(
            model,
            lr,
            server_lr=server_lr,
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
        check_numbers("FedProx", proximal_mu=proximal_mu)
        if proximal_mu < 0:
            raise ValueError(f"FedProx: proximal_mu must be at least 0, got {proximal_mu}")
        if not proximal_mu:
            logger.warning("FedProx with proximal_mu=0 is FedAvg")
        self.proximal_mu = proximal_mu
