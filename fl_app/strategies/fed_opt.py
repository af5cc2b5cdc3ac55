"""FedAvg with another optimiser on the server: FedAvgM, FedAdagrad, FedAdam and FedYogi, named as in Flower.

Flower's ``eta_l``, the clients' rate, is the run's ``lr``: it follows the schedule, and the order carries it.
"""

from __future__ import annotations

from torch import nn

from fl_app.strategies.arguments import ConfiguredRun, check_numbers
from fl_app.strategies.fed_avg import FedAvg
from fl_app.strategies.optimisers import adagrad, adam, yogi
from fl_app.strategies.robust import Rule
from fl_app.training.schedules import Schedule


class FedAvgM(FedAvg):
    """FedAvg with momentum on the server (Hsu et al., 2019)."""

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        server_learning_rate: float = 1.0,
        server_momentum: float = 0.0,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        weight_decay: float = 0.0,
        downlink: str = "auto",
        exchange_buffers: bool = True,
        timeout: float | None = None,
        wait: float = 60.0,
        seed: int = 0,
        aggregate: Rule | None = None,
        run: ConfiguredRun | None = None,
    ) -> None:
        check_numbers("FedAvgM", server_learning_rate=server_learning_rate, server_momentum=server_momentum)
        super().__init__(
            model,
            lr,
            server_lr=server_learning_rate,
            momentum=server_momentum,
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            weight_decay=weight_decay,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )


class FedAdagrad(FedAvg):
    """FedAvg whose server takes steps of Adagrad (Reddi et al., 2021)."""

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        eta: float = 0.1,
        tau: float = 1e-3,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        weight_decay: float = 0.0,
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
            optimiser=adagrad(eta, tau),
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            weight_decay=weight_decay,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )


class FedAdam(FedAvg):
    """FedAvg whose server takes steps of Adam (Reddi et al., 2021)."""

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        eta: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        weight_decay: float = 0.0,
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
            optimiser=adam(eta, beta_1, beta_2, tau),
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            weight_decay=weight_decay,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )


class FedYogi(FedAvg):
    """FedAvg whose server takes steps of Yogi (Reddi et al., 2021)."""

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        eta: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        weight_decay: float = 0.0,
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
            optimiser=yogi(eta, beta_1, beta_2, tau),
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            weight_decay=weight_decay,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )
