"""FedAvg with another optimiser on the server: FedAvgM, FedAdagrad, FedAdam and FedYogi, in Flower's words.

Flower's ``eta_l``, the clients' rate, is the run's ``lr``: it follows the schedule and travels in the order.
"""

from __future__ import annotations

from typing import Any

from fl_app.strategies.fed_avg import FedAvg
from fl_app.strategies.optimisers import adagrad, adam, yogi


class FedAvgM(FedAvg):
    """FedAvg with momentum on the server (Hsu et al., 2019)."""

    def __init__(
        self, *args: Any, server_learning_rate: float = 1.0, server_momentum: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, server_lr=server_learning_rate, momentum=server_momentum, **kwargs)


class FedAdagrad(FedAvg):
    """FedAvg whose server takes steps of Adagrad (Reddi et al., 2021)."""

    def __init__(self, *args: Any, eta: float = 0.1, tau: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(*args, optimiser=adagrad(eta, tau), **kwargs)


class FedAdam(FedAvg):
    """FedAvg whose server takes steps of Adam (Reddi et al., 2021)."""

    def __init__(
        self,
        *args: Any,
        eta: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, optimiser=adam(eta, beta_1, beta_2, tau), **kwargs)


class FedYogi(FedAvg):
    """FedAvg whose server takes steps of Yogi (Reddi et al., 2021)."""

    def __init__(
        self,
        *args: Any,
        eta: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, optimiser=yogi(eta, beta_1, beta_2, tau), **kwargs)
