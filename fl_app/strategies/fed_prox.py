"""FedProx on Flower: FedAvg whose clients are held near the model that they were sent."""

from __future__ import annotations

import logging
from typing import Any

from fl_app.strategies.fed_avg import FedAvg

logger = logging.getLogger(__name__)


class FedProx(FedAvg):
    """FedAvg with ``proximal_mu / 2 * ||w - w_t||^2`` in the clients' loss (Li et al., 2020).

    The server averages as FedAvg does. Clients take the same setting from the config they share with the
    server (``training.proximal_mu``), as they take their epochs and batches.
    """

    def __init__(self, *args: Any, proximal_mu: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if proximal_mu < 0:
            raise ValueError(f"FedProx: proximal_mu must be at least 0, got {proximal_mu}")
        if not proximal_mu:
            logger.warning("FedProx with proximal_mu=0 is FedAvg")
        self.proximal_mu = proximal_mu
